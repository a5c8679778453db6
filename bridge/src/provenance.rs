//! Which characters of a prompt a message wrote, and which the template.
//!
//! The prompt is rendered as it is, and once more with every traced character of every message string (those
//! that control tokens are spelled with) replaced by a twin: a character that occurs nowhere else. Twins stand
//! for one character each, so lengths, slices, splits at other characters and joins come out alike, and where
//! the second text with its twins put back equals the first, the twins are the message's characters.
//!
//! It differs where the template looks for a traced character in a message, as in `'</think>' in m.content`.
//! Then the messages stay as they are, and the engine traces what the template makes of them (tracing.rs).
//! That rendering, too, must equal the first; a prompt for which neither does is refused.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::template::Template;
use crate::tracing::Twins;
use crate::value::{read, Marking};

pub struct Prompt {
    pub text: String,
    /// Ascending, disjoint byte ranges of `text`.
    pub spans: Vec<Range<usize>>,
}

/// One unused character for each mark. Noncharacters come first: no text should have them.
fn choose_twins(marks: &[char], context: &[u8], source: &str) -> Result<Twins, String> {
    let text = String::from_utf8_lossy(context);
    let used: HashSet<char> = text.chars().chain(source.chars()).filter(|&c| c >= '\u{fdd0}').collect();
    let mut free = ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{10fffd}').filter(|c| !used.contains(c));
    let pair = |&mark| Some((mark, free.next()?));
    let twins = marks.iter().map(pair).collect::<Option<_>>();
    twins.map(Arc::new).ok_or_else(|| "the messages use every private character".into())
}

/// Where the twins are, if `marked` is `text` but for them; neighbours joined.
fn twin_spans(text: &str, marked: &str, twins: &Twins) -> Option<Vec<Range<usize>>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    let mut rest = text.char_indices();
    for m in marked.chars() {
        let (at, c) = rest.next()?;
        let end = at + c.len_utf8();
        let is_twin = twins.contains(&(c, m));
        if m != c && !is_twin {
            return None;
        }
        match spans.last_mut() {
            Some(last) if is_twin && last.end == at => last.end = end,
            _ if is_twin => spans.push(at..end),
            _ => {}
        }
    }
    rest.next().is_none().then_some(spans)
}

pub fn render(template: &Template, context: &[u8], marks: &[char], now: i64) -> Result<Prompt, String> {
    let same: Vec<(char, char)> = marks.iter().map(|&mark| (mark, mark)).collect();
    let mut marking = Marking { twins: &same, strings: 0 };
    let request = read(context, &mut marking)?;
    let text = template.render(request.clone(), now)?;
    if u32::try_from(text.len()).is_err() {
        return Err("the prompt is longer than 4 GiB".into());
    }
    if marking.strings == 0 {
        return Ok(Prompt { text, spans: Vec::new() });
    }
    let twins = choose_twins(marks, context, &template.source)?;
    let marked = template.render(read(context, &mut Marking { twins: &twins, strings: 0 })?, now).ok();
    let mut spans = marked.and_then(|marked| twin_spans(&text, &marked, &twins));
    if spans.is_none() {
        let traced = template.render_traced(request, now, &twins);
        spans = traced.and_then(|traced| twin_spans(&text, &traced, &twins));
    }
    let spans =
        spans.ok_or("the chat template treats tags that messages spell in a way that cannot be traced")?;
    Ok(Prompt { text, spans })
}
