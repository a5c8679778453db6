//! Values as C++ hands them over: a byte for the kind, then
//!   `n` null, `t` true, `f` false
//!   `#` a number by its JSON spelling; `s` a string of the checkpoint; `m` a string of a message
//!       (each: length, then UTF-8)
//!   `[` count, then the items; `{` count, then for each member its key (a string) and its value
//! Lengths and counts are little-endian u32.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Object, ObjectRepr, Value};

use crate::tracing::to_twins;

/// A number whose spelling is not what printing its value gives ("1.50", "1e3", 40 digits). It prints,
/// compares with its like and tests as a number; there is no arithmetic on it.
#[derive(Debug)]
pub struct SpelledNumber {
    pub spelling: String,
    pub value: f64,
}

impl Object for SpelledNumber {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn is_true(self: &Arc<Self>) -> bool {
        self.value != 0.0
    }
    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        Some(self.value.total_cmp(&other.downcast_ref::<Self>()?.value))
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spelling)
    }
}

fn number(spelling: &str) -> Result<Value, String> {
    if let Ok(integer) = spelling.parse::<i128>() {
        if integer.to_string() == spelling {
            // The narrowest type, which is what a template's own integers have.
            return Ok(i64::try_from(integer).map_or_else(|_| Value::from(integer), Value::from));
        }
    }
    let value: f64 = spelling.parse().map_err(|_| format!("`{spelling}` is no number"))?;
    let native = Value::from(value);
    if native.to_string() == spelling {
        return Ok(native);
    }
    Ok(Value::from_object(SpelledNumber { spelling: spelling.into(), value }))
}

/// Replaces characters of message strings by twins, one for one.
pub struct Marking<'a> {
    pub twins: &'a [(char, char)],
    /// How many strings hold a character to mark: counts up while reading.
    pub strings: usize,
}

impl Marking<'_> {
    fn apply(&mut self, text: &str) -> Value {
        if !text.chars().any(|c| self.twins.iter().any(|pair| pair.0 == c)) {
            return Value::from(text);
        }
        self.strings += 1;
        Value::from(to_twins(self.twins, text))
    }
}

struct Reader<'a, 'm, 't> {
    rest: &'a [u8],
    marking: &'m mut Marking<'t>,
}

pub fn read(bytes: &[u8], marking: &mut Marking) -> Result<Value, String> {
    Reader { rest: bytes, marking }.value()
}

impl<'a> Reader<'a, '_, '_> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        if count > self.rest.len() {
            return Err("the context ends early".into());
        }
        let (head, tail) = self.rest.split_at(count);
        self.rest = tail;
        Ok(head)
    }

    fn count(&mut self) -> Result<usize, String> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize)
    }

    fn text(&mut self) -> Result<&'a str, String> {
        let count = self.count()?;
        std::str::from_utf8(self.take(count)?).map_err(|error| error.to_string())
    }

    fn value(&mut self) -> Result<Value, String> {
        match self.take(1)?[0] {
            b'n' => Ok(Value::from(())),
            b't' => Ok(Value::from(true)),
            b'f' => Ok(Value::from(false)),
            b'#' => number(self.text()?),
            b's' => Ok(Value::from_safe_string(self.text()?.into())),
            b'm' => {
                let text = self.text()?;
                Ok(self.marking.apply(text))
            }
            b'[' => {
                let count = self.count()?;
                let items: Result<Vec<Value>, String> = (0..count).map(|_| self.value()).collect();
                Ok(Value::from(items?))
            }
            b'{' => {
                let count = self.count()?;
                let pairs = (0..count).map(|_| Ok((self.value()?, self.value()?)));
                Ok(Value::from_pairs(pairs.collect::<Result<Vec<(Value, Value)>, String>>()?))
            }
            kind => Err(format!("kind {kind} in the context")),
        }
    }
}
