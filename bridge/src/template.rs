//! A chat template in the environment of transformers' apply_chat_template (chat_template_utils.py).

use std::borrow::Cow;
use std::ffi::CString;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{context, AutoEscape, Environment, Error, ErrorKind};

use crate::json;
use crate::methods;
use crate::tracing::{self, Twins};
use crate::value::SpelledNumber;

const NAME: &str = "chat_template";
const TRACED: &str = "traced_chat_template";

pub struct Template {
    environment: Environment<'static>,
    pub source: String,
}

/// What printing a value gives. The engine never writes a float with an exponent, Python does.
pub fn text_of(value: &Value) -> Cow<'_, str> {
    match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None if value.is_number() && !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) if number.is_finite() => Cow::Owned(json::python_float(number)),
            _ => Cow::Owned(value.to_string()),
        },
        None => Cow::Owned(value.to_string()),
    }
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
        environment.set_auto_escape_callback(|name| match name {
            TRACED => AutoEscape::Custom("provenance".into()),
            _ => AutoEscape::None,
        });
        environment.set_formatter(|out, _, value| out.write_str(&text_of(value)).map_err(Error::from));
        environment.set_unknown_method_callback(methods::call);
        environment.add_filter("tojson", json::tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_test("number", |value: &Value| is_number(value));
        environment.add_test("integer", |value: &Value| is_integer(value));
        environment.add_test("float", |value: &Value| is_number(value) && !is_integer(value));
        // transformers' {% generation %} only marks the answer's place for training.
        let generation =
            regex::Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})").expect("a valid pattern");
        let plain = generation.replace_all(source, |found: &regex::Captures| {
            let word = if found.get(2).is_some() { "endif" } else { "if true" };
            format!("{}{}{}", &found[1], word, &found[3])
        });
        let traced = tracing::wrap_literals(&plain);
        environment.add_template_owned(NAME, plain.into_owned()).map_err(|error| error.to_string())?;
        // A template that switches escaping off cannot be traced, nor can one with syntax that wrapping spoils.
        if !source.contains("autoescape") {
            let _ = environment.add_template_owned(TRACED, traced);
        }
        Ok(Template { environment, source: source.into() })
    }

    pub fn render(&self, request: Value, now: i64) -> Result<String, String> {
        let strftime_now = Value::from_function(move |format: &str| strftime(now, format));
        let context = context! { strftime_now, ..request };
        let template = self.environment.get_template(NAME).expect("added in new");
        template.render(context).map_err(|error| message_of(&error))
    }

    /// The same with the traced characters of messages as twins, or nothing where that cannot be.
    pub fn render_traced(&self, request: Value, now: i64, twins: &Twins) -> Option<String> {
        let strftime_now = Value::from_function(move |format: &str| strftime(now, format));
        let context = context! { strftime_now, ..request };
        let environment = tracing::environment(&self.environment, twins);
        environment.get_template(TRACED).ok()?.render(context).ok()
    }
}
