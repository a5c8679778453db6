//! A chat template in the environment of transformers' apply_chat_template (chat_template_utils.py).

use std::ffi::CString;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{context, Environment, Error, ErrorKind};

use crate::json;
use crate::value::SpelledNumber;

const NAME: &str = "chat_template";

pub struct Template {
    environment: Environment<'static>,
    pub source: String,
}

/// What raise_exception was called with.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn message_of(error: &Error) -> String {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(inner) = cause {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            return format!("the chat template refuses this request: {raised}");
        }
        cause = inner.source();
    }
    error.to_string()
}

/// datetime.now().strftime(format), which is the C library's.
fn strftime(now: i64, format: &str) -> Result<String, Error> {
    let c_format = CString::new(format)
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: the format has a NUL"))?;
    let mut text = [0u8; 512];
    // SAFETY: both calls write only into the given buffers, whose sizes they are told.
    let length = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut time);
        libc::strftime(text.as_mut_ptr().cast(), text.len(), c_format.as_ptr(), &time)
    };
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

fn is_number(value: &Value) -> bool {
    value.is_number() || value.downcast_object_ref::<SpelledNumber>().is_some()
}

fn is_integer(value: &Value) -> bool {
    match value.downcast_object_ref::<SpelledNumber>() {
        Some(number) => !number.spelling.contains(['.', 'e', 'E']),
        None => value.is_integer(),
    }
}

impl Template {
    pub fn new(source: &str) -> Result<Template, String> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", json::tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_test("number", |value: &Value| is_number(value));
        environment.add_test("integer", |value: &Value| is_integer(value));
        environment.add_test("float", |value: &Value| is_number(value) && !is_integer(value));
        // transformers' {% generation %} only marks the answer's place for training.
        let generation = regex::Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})").expect("a valid pattern");
        let plain = generation.replace_all(source, |found: &regex::Captures| {
            let word = if found.get(2).is_some() { "endif" } else { "if true" };
            format!("{}{}{}", &found[1], word, &found[3])
        });
        environment.add_template_owned(NAME, plain.into_owned()).map_err(|error| error.to_string())?;
        Ok(Template { environment, source: source.into() })
    }

    pub fn render(&self, request: Value, now: i64) -> Result<String, String> {
        let strftime_now = Value::from_function(move |format: &str| strftime(now, format));
        let context = context! { strftime_now, ..request };
        let template = self.environment.get_template(NAME).expect("added in new");
        template.render(context).map_err(|error| message_of(&error))
    }
}
