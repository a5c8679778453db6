//! Which characters of a prompt a message wrote, and which the template.
//!
//! The prompt is rendered as it is, and once more with every traced character of every message string (those
//! that control tokens are spelled with) replaced by a twin: a character that occurs nowhere else. Twins stand
//! for one character each, so lengths, slices, splits at other characters and joins come out alike, and where
//! the second text with its twins put back equals the first, the twins are the message's characters.
//!
//! It differs where the template looks for a traced character in a message, as in `'</think>' in m.content`.
//! Then the strings are halved until those that matter stand alone. For such a string, what lies between the
//! common beginning and the common end of the two texts counts as the message's, the template's own tags in
//! it too: safe, though the model then reads these tags as text.

use std::collections::HashSet;
use std::ops::Range;

use crate::template::Template;
use crate::value::{read, Marking};

pub struct Prompt {
    pub text: String,
    /// Ascending, disjoint byte ranges of `text`.
    pub spans: Vec<Range<usize>>,
}

/// Renderings that the search for strings the template reads may cost.
const MAX_RENDERINGS: usize = 64;

struct Search<'a> {
    template: &'a Template,
    context: &'a [u8],
    twins: Vec<(char, char)>,
    now: i64,
    text: String,
    spans: Vec<Range<usize>>,
    renderings: usize,
}

/// One unused character for each mark. Noncharacters come first: no text should have them.
fn choose_twins(marks: &[char], context: &[u8], source: &str) -> Result<Vec<(char, char)>, String> {
    let text = String::from_utf8_lossy(context);
    let used: HashSet<char> = text.chars().chain(source.chars()).filter(|&c| c >= '\u{fdd0}').collect();
    let mut free = ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{10fffd}').filter(|c| !used.contains(c));
    let pair = |&mark| Some((mark, free.next()?));
    marks.iter().map(pair).collect::<Option<_>>().ok_or_else(|| "the messages use every private character".into())
}

impl Search<'_> {
    fn original(&self, c: char) -> (char, bool) {
        match self.twins.iter().find(|pair| pair.1 == c) {
            Some(pair) => (pair.0, true),
            None => (c, false),
        }
    }

    /// Adds the marked characters in the common beginning of `text` and `marked`; returns that beginning's end
    /// in both.
    fn compare(&mut self, marked: &str) -> (usize, usize) {
        let (mut at, mut marked_at) = (0, 0);
        let mut found = Vec::new();
        for (c, m) in self.text.chars().zip(marked.chars()) {
            let (original, twin) = self.original(m);
            if c != original {
                break;
            }
            if twin {
                found.push(at..at + c.len_utf8());
            }
            at += c.len_utf8();
            marked_at += m.len_utf8();
        }
        self.spans.append(&mut found);
        (at, marked_at)
    }

    /// The same from behind, over the rests of both; returns where the common end begins in `text`.
    fn compare_back(&mut self, begin: usize, marked: &str) -> usize {
        let mut at = self.text.len();
        let mut found = Vec::new();
        for (c, m) in self.text[begin..].chars().rev().zip(marked.chars().rev()) {
            let (original, twin) = self.original(m);
            if c != original {
                break;
            }
            at -= c.len_utf8();
            if twin {
                found.push(at..at + c.len_utf8());
            }
        }
        self.spans.append(&mut found);
        at
    }

    fn trace(&mut self, strings: Range<usize>) -> Result<(), String> {
        self.renderings += 1;
        let mut marking = Marking { twins: &self.twins, selected: strings.clone(), strings: 0 };
        let context = read(self.context, &mut marking)?;
        // A template may refuse what it cannot read with the twins in it: then all of the text is suspect.
        let marked = self.template.render(context, self.now).unwrap_or_default();
        let known = self.spans.len();
        let (end, marked_end) = self.compare(&marked);
        if end == self.text.len() && marked_end == marked.len() {
            return Ok(());
        }
        if strings.len() > 1 && self.renderings < MAX_RENDERINGS {
            self.spans.truncate(known);
            let middle = strings.start + strings.len() / 2;
            self.trace(strings.start..middle)?;
            return self.trace(middle..strings.end);
        }
        let tail = self.compare_back(end, &marked[marked_end..]);
        self.spans.push(end..tail);
        Ok(())
    }
}

/// Joins what overlaps or touches.
fn merged(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_by_key(|span| span.start);
    let mut out: Vec<Range<usize>> = Vec::new();
    for span in spans {
        match out.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => out.push(span),
        }
    }
    out
}

pub fn render(template: &Template, context: &[u8], marks: &[char], now: i64) -> Result<Prompt, String> {
    let unmarked: Vec<(char, char)> = marks.iter().map(|&mark| (mark, mark)).collect();
    let mut marking = Marking { twins: &unmarked, selected: 0..0, strings: 0 };
    let request = read(context, &mut marking)?;
    let strings = marking.strings;
    let text = template.render(request, now)?;
    if u32::try_from(text.len()).is_err() {
        return Err("the prompt is longer than 4 GiB".into());
    }
    if strings == 0 {
        return Ok(Prompt { text, spans: Vec::new() });
    }
    let twins = choose_twins(marks, context, &template.source)?;
    let mut search = Search { template, context, twins, now, text, spans: Vec::new(), renderings: 0 };
    search.trace(0..strings)?;
    Ok(Prompt { text: search.text, spans: merged(search.spans) })
}
