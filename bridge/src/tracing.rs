//! A template made to keep apart what it writes itself and what it got from messages, by the engine's own
//! automatic escaping. Its literals become safe strings, as in templates for HTML; the strings of messages
//! are unsafe; and to escape is here to replace the traced characters by their twins. Comparisons see every
//! string as it is. What loses track (a slice of a literal, say) counts as a message's.

use std::sync::Arc;

use minijinja::value::{Kwargs, Tuple, Value, ValueKind};
use minijinja::{Environment, Error, HtmlEscape, State};

use crate::methods;
use crate::template::text_of;

pub type Twins = Arc<Vec<(char, char)>>;

/// The filter that marks a literal as the template's.
pub const OWN: &str = "tercet_own";

pub fn to_twins(twins: &[(char, char)], text: &str) -> String {
    text.chars().map(|c| twins.iter().find(|pair| pair.0 == c).map_or(c, |pair| pair.1)).collect()
}

/// Appends a tag's contents from `source`, up to and with its end, with every string literal wrapped; returns
/// what follows.
fn copy_tag<'s>(source: &'s str, end: &str, out: &mut String) -> &'s str {
    let mut depth = 0;
    let mut at = 0;
    while let Some(c) = source[at..].chars().next() {
        match c {
            '\'' | '"' => {
                let mut escaped = false;
                let close = source[at + 1..].find(|d| {
                    let closes = d == c && !escaped;
                    escaped = d == '\\' && !escaped;
                    closes
                });
                let stop = close.map_or(source.len(), |close| at + close + 2);
                out.push_str(&format!("({}|{OWN})", &source[at..stop]));
                at = stop;
                continue;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            _ if depth == 0 && source[at..].starts_with(end) => {
                out.push_str(end);
                return &source[at + end.len()..];
            }
            _ => {}
        }
        out.push(c);
        at += c.len_utf8();
    }
    ""
}

/// The template with all string literals of its tags wrapped.
pub fn wrap_literals(source: &str) -> String {
    let raw = regex::Regex::new(r"(?s)^\{%[-+]?\s*raw\s*[-+]?%\}.*?\{%[-+]?\s*endraw\s*[-+]?%\}")
        .expect("a valid pattern");
    let mut out = String::new();
    let mut rest = source;
    while let Some(brace) = rest.find('{') {
        out.push_str(&rest[..brace]);
        rest = &rest[brace..];
        let verbatim = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map_or(rest.len(), |end| end + 2),
            Some(b'%') => raw.find(rest).map_or(0, |block| block.end()),
            Some(b'{') => 0,
            _ => 1,
        };
        if verbatim > 0 {
            out.push_str(&rest[..verbatim]);
            rest = &rest[verbatim..];
            continue;
        }
        let end = if rest.starts_with("{%") { "%}" } else { "}}" };
        out.push_str(&rest[..2]);
        rest = copy_tag(&rest[2..], end, &mut out);
    }
    out + rest
}

fn is_own(value: &Value) -> bool {
    value.kind() == ValueKind::String && value.is_safe()
}

/// `value` ready to stand inside a string of the template.
fn escaped(twins: &[(char, char)], value: &Value) -> Value {
    match value.kind() {
        _ if is_own(value) => value.clone(),
        ValueKind::String => Value::from_safe_string(to_twins(twins, &text_of(value))),
        ValueKind::Seq | ValueKind::Iterable => match value.try_iter() {
            Ok(items) => items.map(|item| escaped(twins, &item)).collect(),
            Err(_) => value.clone(),
        },
        ValueKind::Map if value.is_kwargs() => match value.try_iter() {
            Ok(keys) => {
                let pair =
                    |key: Value| (key.to_string(), escaped(twins, &value.get_item(&key).unwrap_or_default()));
                Value::from(keys.map(pair).collect::<Kwargs>())
            }
            Err(_) => value.clone(),
        },
        ValueKind::Map | ValueKind::Plain => Value::from_safe_string(to_twins(twins, &text_of(value))),
        _ => value.clone(),
    }
}

/// A method's result on a string of the template.
fn as_own(value: Value) -> Value {
    let items = |value: &Value| value.try_iter().into_iter().flatten().map(as_own).collect::<Vec<Value>>();
    match value.kind() {
        ValueKind::String => Value::from_safe_string(value.to_string()),
        ValueKind::Seq if value.is_tuple() => Value::from(Tuple::from(items(&value))),
        ValueKind::Seq => Value::from(items(&value)),
        _ => value,
    }
}

fn replace(twins: &[(char, char)], value: &Value, from: &str, to: &Value, count: Option<usize>) -> Value {
    let count = count.unwrap_or(usize::MAX);
    if is_own(value) {
        Value::from_safe_string(text_of(value).replacen(from, &text_of(&escaped(twins, to)), count))
    } else {
        Value::from(text_of(value).replacen(from, &text_of(to), count))
    }
}

/// `environment` for one rendering of a template from [`wrap_literals`] under automatic escaping.
pub fn environment(environment: &Environment<'static>, twins: &Twins) -> Environment<'static> {
    let mut tracing = environment.clone();
    tracing.add_filter(OWN, Value::from_safe_string);
    // A template may call nothing safe that is not its own, nor escape it in HTML's way.
    tracing.add_filter("safe", |value: Value| value);
    for name in ["e", "escape", "forceescape"] {
        tracing.add_filter(name, |value: &Value| HtmlEscape(&text_of(value)).to_string());
    }
    let own = Arc::clone(twins);
    tracing.add_filter("replace", move |value: &Value, from: &str, to: &Value, count: Option<usize>| {
        replace(&own, value, from, to, count)
    });
    let own = Arc::clone(twins);
    tracing.set_unknown_method_callback(
        move |state: &mut State, value: &Value, method: &str, args: &[Value]| {
            if !is_own(value) {
                return methods::call(state, value, method, args);
            }
            let args: Vec<Value> = args.iter().map(|arg| escaped(&own, arg)).collect();
            methods::call(state, value, method, &args).map(as_own)
        },
    );
    let own = Arc::clone(twins);
    tracing.set_formatter(move |out, _, value| {
        let text = text_of(value);
        let text = if is_own(value) { text.into_owned() } else { to_twins(&own, &text) };
        out.write_str(&text).map_err(Error::from)
    });
    tracing
}
