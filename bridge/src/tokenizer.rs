//! The model, the normaliser and the pre-tokeniser of a tokenizer.json, run by Hugging Face's code. The added
//! tokens stay outside: C++ cuts a prompt at those that the template wrote, and the rest is text.

use std::cell::RefCell;

use serde::Deserialize;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    DecoderWrapper, Model, Normalizer, NormalizerWrapper, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
};

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
pub struct Tokenizer {
    added_tokens: Vec<AddedToken>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    decoder: Option<DecoderWrapper>,
    model: BPE,
}

const MAX_ID: u32 = 1 << 24;

const EXISTS: u8 = 1;
const ADDED: u8 = 2;
const SPECIAL: u8 = 4;

/// The byte that each character of a byte-level token stands for (OpenAI's GPT-2 table): printable Latin-1
/// characters stand for themselves, the other bytes follow from U+0100 in ascending order.
fn byte_of_char(c: char) -> Option<u8> {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(c) {
        code @ 0..=0xff => Some(code as u8).filter(|&b| printable(b)),
        code => (0..=255u8).filter(|&b| !printable(b)).nth(code.checked_sub(0x100)? as usize),
    }
}

impl Tokenizer {
    pub fn new(json: &[u8]) -> Result<Tokenizer, String> {
        let tokenizer: Tokenizer = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if !matches!(tokenizer.decoder, Some(DecoderWrapper::ByteLevel(_))) {
            return Err("only byte-level tokenizers are supported: expected a decoder of type ByteLevel".into());
        }
        let ids = tokenizer.added_tokens.iter().map(|token| token.id);
        let ids = ids.chain(tokenizer.model.get_vocab().into_values());
        match ids.max() {
            None => Err("the vocabulary is empty".into()),
            Some(id) if id > MAX_ID => Err(format!("token id {id} is beyond {MAX_ID}")),
            Some(_) => Ok(tokenizer),
        }
    }

    /// See tercet_tokenizer_vocabulary.
    pub fn vocabulary(&self) -> Vec<u8> {
        let mut tokens: Vec<(u8, Vec<u8>)> = Vec::new();
        let mut put = |id: u32, flags: u8, text: &str| {
            let id = id as usize;
            if tokens.len() <= id {
                tokens.resize(id + 1, (0, Vec::new()));
            }
            // As Hugging Face decodes: a token with a character outside the table is its own UTF-8.
            let bytes: Option<Vec<u8>> = text.chars().map(|c| byte_of_char(c)).collect();
            tokens[id] = (flags, bytes.unwrap_or_else(|| text.as_bytes().to_vec()));
        };
        for (text, id) in self.model.get_vocab() {
            put(id, EXISTS, &text);
        }
        for token in &self.added_tokens {
            put(token.id, EXISTS | ADDED | if token.special { SPECIAL } else { 0 }, &token.content);
        }
        let mut table = Vec::new();
        for (flags, bytes) in tokens {
            table.push(flags);
            table.extend((bytes.len() as u32).to_le_bytes());
            table.extend(bytes);
        }
        table
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut pieces = PreTokenizedString::from(text);
        let ids = RefCell::new(Vec::new());
        let mut run = || -> tokenizers::Result<()> {
            if let Some(normalizer) = &self.normalizer {
                pieces.normalize(|piece| normalizer.normalize(piece))?;
            }
            if let Some(pre_tokenizer) = &self.pre_tokenizer {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            // Offsets, strings and masks of an Encoding are half of its cost, and only ids are wanted.
            pieces.tokenize(|piece| {
                let tokens = self.model.tokenize(piece.get())?;
                ids.borrow_mut().extend(tokens.iter().map(|token| token.id));
                Ok(Vec::new())
            })
        };
        run().map_err(|error| error.to_string())?;
        Ok(ids.into_inner())
    }
}
