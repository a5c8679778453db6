//! The C interface that tercet_bridge.h states.

mod grammar;
mod json;
mod methods;
mod provenance;
mod template;
mod tokenizer;
mod tracing;
mod value;

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};

use grammar::{Grammars, Matcher};
use template::Template;
use tokenizer::Tokenizer;

#[repr(C)]
pub struct Buffer {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        Buffer { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() }
    }
}

fn little_endian(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    format!("internal error: {}", text.unwrap_or("panic"))
}

/// Runs `body`, keeping panics on this side.
///
/// # Safety
/// `error` points to memory for a Buffer.
unsafe fn guarded(error: *mut Buffer, body: impl FnOnce() -> Result<(), String>) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(panic_message(payload)));
    match outcome {
        Ok(()) => true,
        Err(message) => {
            error.write(message.into_bytes().into());
            false
        }
    }
}

/// # Safety
/// `data` points to `size` bytes that outlive the call, or `size` is 0.
unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

/// # Safety
/// `data` points to `count` ids that outlive the call, or `count` is 0.
unsafe fn ids<'a>(data: *const i32, count: usize) -> &'a [i32] {
    if count == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, count)
    }
}

/// # Safety
/// As for [`bytes`].
unsafe fn utf8<'a>(data: *const u8, size: usize) -> Result<&'a str, String> {
    std::str::from_utf8(bytes(data, size)).map_err(|error| error.to_string())
}

/// # Safety
/// `buffer` came from this library and was not freed before.
#[no_mangle]
pub unsafe extern "C" fn tercet_buffer_free(buffer: Buffer) {
    if !buffer.data.is_null() {
        drop(Vec::from_raw_parts(buffer.data, buffer.size, buffer.capacity));
    }
}

/// # Safety
/// As tercet_bridge.h says; so for all functions below.
#[no_mangle]
pub unsafe extern "C" fn tercet_tokenizer_new(
    json: *const u8,
    size: usize,
    tokenizer: *mut *const Tokenizer,
    error: *mut Buffer,
) -> bool {
    guarded(error, || {
        tokenizer.write(Box::into_raw(Box::new(Tokenizer::new(bytes(json, size))?)));
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_tokenizer_free(tokenizer: *const Tokenizer) {
    drop(Box::from_raw(tokenizer.cast_mut()));
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_tokenizer_vocabulary(
    tokenizer: *const Tokenizer,
    table: *mut Buffer,
    error: *mut Buffer,
) -> bool {
    guarded(error, || {
        table.write((*tokenizer).vocabulary()?.into());
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: *const u8,
    size: usize,
    ids: *mut Buffer,
    error: *mut Buffer,
) -> bool {
    guarded(error, || {
        let text = String::from_utf8_lossy(bytes(text, size));
        ids.write(little_endian((*tokenizer).encode(&text)?).into());
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_template_new(
    source: *const u8,
    size: usize,
    chat_template: *mut *mut Template,
    error: *mut Buffer,
) -> bool {
    guarded(error, || {
        chat_template.write(Box::into_raw(Box::new(Template::new(utf8(source, size)?)?)));
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_template_free(chat_template: *mut Template) {
    drop(Box::from_raw(chat_template));
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_template_render(
    chat_template: *const Template,
    context: *const u8,
    context_size: usize,
    marks: *const u8,
    marks_size: usize,
    now: i64,
    text: *mut Buffer,
    spans: *mut Buffer,
    error: *mut Buffer,
) -> bool {
    guarded(error, || {
        let marks: Vec<char> = utf8(marks, marks_size)?.chars().collect();
        let prompt = provenance::render(&*chat_template, bytes(context, context_size), &marks, now)?;
        text.write(prompt.text.into_bytes().into());
        spans.write(
            little_endian(prompt.spans.iter().flat_map(|span| [span.start as u32, span.end as u32])).into(),
        );
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_grammars_new(
    tokenizer: *const Tokenizer,
    controls: *const i32,
    control_count: usize,
    ends: *const i32,
    end_count: usize,
    vocabulary: usize,
    grammars: *mut *mut Grammars,
    error: *mut Buffer,
) -> bool {
    guarded(error, || {
        let (controls, ends) = (ids(controls, control_count), ids(ends, end_count));
        let made = Grammars::new(&*tokenizer, controls, ends, vocabulary)?;
        grammars.write(Box::into_raw(Box::new(made)));
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_grammars_free(grammars: *mut Grammars) {
    drop(Box::from_raw(grammars));
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_grammars_compile(
    grammars: *const Grammars,
    grammar: *const u8,
    size: usize,
    matcher: *mut *mut Matcher,
    error: *mut Buffer,
) -> bool {
    guarded(error, || {
        matcher.write(Box::into_raw(Box::new((*grammars).compile(utf8(grammar, size)?)?)));
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_matcher_copy(matcher: *const Matcher) -> *mut Matcher {
    Box::into_raw(Box::new((*matcher).copy()))
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_matcher_free(matcher: *mut Matcher) {
    drop(Box::from_raw(matcher));
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_matcher_mask(
    matcher: *mut Matcher,
    words: *mut u32,
    count: usize,
    error: *mut Buffer,
) -> bool {
    guarded(error, || (*matcher).mask(std::slice::from_raw_parts_mut(words, count)))
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tercet_matcher_accept(
    matcher: *mut Matcher,
    token: i32,
    error: *mut Buffer,
) -> bool {
    guarded(error, || (*matcher).accept(token))
}
