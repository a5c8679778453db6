//! The model, the normaliser and the pre-tokeniser of a tokenizer.json, run by Hugging Face's code. The added
//! tokens stay outside: C++ cuts a prompt at those that the template wrote, and the rest is text.

use std::cell::RefCell;
use std::collections::HashMap;

use serde::Deserialize;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    DecoderWrapper, Model, Normalizer, NormalizerWrapper, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper,
};

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
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
fn bytes_of_chars() -> HashMap<char, u8> {
    let printable = |b: &u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|b| !printable(b));
    let shifted = ('\u{100}'..).zip(others);
    (0..=255u8).filter(printable).map(|b| (char::from(b), b)).chain(shifted).collect()
}

impl Tokenizer {
    pub fn new(json: &[u8]) -> Result<Tokenizer, String> {
        let tokenizer: Tokenizer = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if !matches!(tokenizer.decoder, Some(DecoderWrapper::ByteLevel(_))) {
            return Err(
                "only byte-level tokenizers are supported: expected a decoder of type ByteLevel".into()
            );
        }
        // C++ takes added tokens wherever they are spelled, and nothing around them.
        match tokenizer.added_tokens.iter().find(|token| token.single_word || token.lstrip || token.rstrip) {
            Some(token) => Err(format!(
                "added token {}: single_word, lstrip and rstrip are not supported",
                token.content
            )),
            None => Ok(tokenizer),
        }
    }

    /// Ids in ascending order, each once, with its flags and bytes.
    pub fn tokens(&self) -> Result<Vec<(u32, u8, Vec<u8>)>, String> {
        let mut tokens: Vec<(u32, u8, String)> = Vec::new();
        tokens.extend(self.model.get_vocab().into_iter().map(|(text, id)| (id, EXISTS, text)));
        for token in &self.added_tokens {
            let flags = EXISTS | ADDED | if token.special { SPECIAL } else { 0 };
            tokens.push((token.id, flags, token.content.clone()));
        }
        // An added token may stand in the model's vocabulary, too: the flags that say more come first.
        tokens.sort_by_key(|(id, flags, _)| (*id, std::cmp::Reverse(*flags)));
        tokens.dedup_by_key(|(id, _, _)| *id);
        match tokens.last() {
            None => return Err("the vocabulary is empty".into()),
            Some((id, _, _)) if *id > MAX_ID => return Err(format!("token id {id} is beyond {MAX_ID}")),
            Some(_) => {}
        }
        let bytes_of_chars = bytes_of_chars();
        let with_bytes = |(id, flags, text): (u32, u8, String)| {
            // As Hugging Face decodes: a token with a character outside the table is its own UTF-8.
            let bytes: Option<Vec<u8>> = text.chars().map(|c| bytes_of_chars.get(&c).copied()).collect();
            (id, flags, bytes.unwrap_or_else(|| text.into_bytes()))
        };
        Ok(tokens.into_iter().map(with_bytes).collect())
    }

    /// See tercet_tokenizer_vocabulary.
    pub fn vocabulary(&self) -> Result<Vec<u8>, String> {
        let mut table = Vec::new();
        let mut next = 0;
        for (id, flags, bytes) in self.tokens()? {
            table.resize(table.len() + 5 * (id - next) as usize, 0); // ids that no token has
            next = id + 1;
            table.push(flags);
            table.extend((bytes.len() as u32).to_le_bytes());
            table.extend(bytes);
        }
        Ok(table)
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
