//! The `tojson` of transformers: Python's json.dumps(value, ensure_ascii=False), with its arguments.

use std::fmt::Write;

use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind};

use crate::value::SpelledNumber;

struct Style {
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    item: String,
    colon: String,
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// repr(float): the shortest digits that give the value back, with an exponent below 1e-4 and from 1e16.
pub fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').expect("an exponent");
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

fn write_string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect("writing to a string");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn write_scalar(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => write!(out, "{value}").expect("writing to a string"),
        ValueKind::Number => out.push_str(&python_float(f64::try_from(value.clone())?)),
        ValueKind::Plain if value.downcast_object_ref::<SpelledNumber>().is_some() => {
            write!(out, "{value}").expect("writing to a string")
        }
        kind => return Err(invalid(format!("a value of type {kind} is not JSON serializable"))),
    }
    Ok(())
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), self.ascii),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_all(out, ('[', ']'), depth, &items, |out, item| self.write(out, item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut members = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    members.push((key, item));
                }
                if self.sort {
                    members.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_all(out, ('{', '}'), depth, &members, |out, (key, item)| {
                    if let Some(text) = key.as_str() {
                        write_string(out, text, self.ascii);
                    } else {
                        out.push('"');
                        write_scalar(out, key)?;
                        out.push('"');
                    }
                    out.push_str(&self.colon);
                    self.write(out, item, depth + 1)
                })?;
            }
            _ => write_scalar(out, value)?,
        }
        Ok(())
    }

    fn write_all<T>(
        &self,
        out: &mut String,
        brackets: (char, char),
        depth: usize,
        items: &[T],
        write_item: impl Fn(&mut String, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        out.push(brackets.0);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            new_line(out, depth + 1);
            write_item(out, item)?;
        }
        if !items.is_empty() {
            new_line(out, depth);
        }
        out.push(brackets.1);
        Ok(())
    }
}

/// tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)
pub fn tojson(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    let (positional, kwargs) = from_args::<(&[Value], Kwargs)>(&arguments)?;
    if positional.len() > 4 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let argument = |index: usize, name: &'static str| -> Result<Option<Value>, Error> {
        let named = kwargs.get::<Option<Value>>(name)?;
        Ok(positional.get(index).cloned().or(named).filter(|value| !value.is_none()))
    };
    let ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let sort = argument(3, "sort_keys")?.is_some_and(|value| value.is_true());
    let indent = match argument(1, "indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(count) => Some(" ".repeat(usize::from(u8::try_from(count)?))),
    };
    let (item, colon) = match argument(2, "separators")? {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    Style { ascii, sort, indent, item, colon }.write(&mut out, value, 0)?;
    Ok(Value::from(out))
}
