//! Python's methods on strings, lists and mappings: those of minijinja-contrib, and what it lacks or does in
//! Rust's way.

use minijinja::value::{from_args, Tuple, Value};
use minijinja::{Error, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// str.isspace(): Unicode's white space and the four information separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip<'a>(text: &'a str, method: &str) -> &'a str {
    let text = if method == "rstrip" { text } else { text.trim_start_matches(is_space) };
    if method == "lstrip" {
        text
    } else {
        text.trim_end_matches(is_space)
    }
}

/// str.splitlines(): at every line boundary that Python knows.
fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end =
        |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let end = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = at + if rest[at..].starts_with("\r\n") { 2 } else { end };
        lines.push(&rest[..if keep_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn partition(text: &str, separator: &str, last: bool) -> [Value; 3] {
    let found = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
    match found {
        Some((head, tail)) => [head, separator, tail].map(Value::from),
        None if last => ["", "", text].map(Value::from),
        None => [text, "", ""].map(Value::from),
    }
}

/// For Environment::set_unknown_method_callback.
pub fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, method, args);
    };
    match method {
        "strip" | "lstrip" | "rstrip" if args.is_empty() => Ok(Value::from(strip(text, method))),
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            Ok(Value::from_iter(split_lines(text, keep_ends.unwrap_or(false))))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            Ok(Value::from(Tuple::from(partition(text, separator, method == "rpartition"))))
        }
        "rsplit" if !args.is_empty() => {
            let (separator, most): (&str, Option<usize>) = from_args(args)?;
            let mut parts: Vec<&str> = match most {
                Some(most) => text.rsplitn(most + 1, separator).collect(),
                None => text.rsplit(separator).collect(),
            };
            parts.reverse();
            Ok(Value::from_iter(parts))
        }
        _ => unknown_method_callback(state, value, method, args),
    }
}
