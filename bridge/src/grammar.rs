//! Grammars over a tokenizer's vocabulary, by llguidance.

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId};
use llguidance::ParserFactory;

use crate::tokenizer::Tokenizer;

pub struct Grammars {
    factory: ParserFactory,
}

/// Grammars come from requests: what one may cost. Compiling ends within some 0.1 s, a mask within 20 ms; most
/// take a hundredth of that. A lexer's state takes 1 to 2 KB.
fn limits() -> ParserLimits {
    ParserLimits {
        max_lexer_states: 50_000,
        initial_lexer_fuel: 100_000,
        max_grammar_size: 200_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Compiling descends into a grammar as deeply as it nests, and into chains of its rules; pages of a stack
/// that are not reached cost nothing.
const STACK_BYTES: usize = 256 << 20;

impl Grammars {
    pub fn new(
        tokenizer: &Tokenizer,
        controls: &[i32],
        ends: &[i32],
        vocabulary: usize,
    ) -> Result<Grammars, String> {
        let mut words = vec![Vec::new(); vocabulary];
        for (id, _, bytes) in tokenizer.tokens()? {
            *words.get_mut(id as usize).ok_or("the vocabulary is smaller than the tokenizer's")? = bytes;
        }
        for &id in controls {
            let word = words.get_mut(id as usize).ok_or("a control token is outside the vocabulary")?;
            word.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
        }
        if ends.iter().any(|&id| id as usize >= vocabulary) {
            return Err("an end token is outside the vocabulary".into());
        }
        let ends: Vec<TokenId> = ends.iter().map(|&id| id as TokenId).collect();
        let first = *ends.first().ok_or("there is no end token")?;
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, first), &words).with_eos_tokens(&ends);
        // Bytes that a grammar forces are not cut into tokens beforehand: a mask allows every token that fits,
        // and costs no more where a grammar forces a megabyte.
        let environment: TokEnv = std::sync::Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| error.to_string())?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Grammars { factory })
    }

    pub fn compile(&self, grammar: &str) -> Result<Matcher, String> {
        let grammar: TopLevelGrammar = serde_json::from_str(grammar).map_err(|error| error.to_string())?;
        let compile = || {
            let parser = self.factory.create_parser(grammar).map_err(|error| error.to_string())?;
            Ok(Matcher { matcher: llguidance::Matcher::new(Ok(parser)) })
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, compile);
            let thread = thread.map_err(|error| format!("no thread to compile a grammar in: {error}"))?;
            thread.join().unwrap_or_else(|payload| Err(crate::panic_message(payload)))
        })
    }
}

pub struct Matcher {
    matcher: llguidance::Matcher,
}

impl Matcher {
    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| self.message(&error))?;
        let mask = mask.as_slice();
        let count = mask.len().min(words.len());
        words[..count].copy_from_slice(&mask[..count]);
        words[count..].fill(0);
        Ok(())
    }

    /// One that goes on by itself from here.
    pub fn copy(&self) -> Matcher {
        Matcher { matcher: self.matcher.deep_clone() }
    }

    pub fn accept(&mut self, token: i32) -> Result<(), String> {
        self.matcher.consume_token(token as TokenId).map_err(|error| self.message(&error))
    }

    /// llguidance's words without the state that it appends.
    fn message(&self, error: &dyn std::fmt::Display) -> String {
        error.to_string().lines().next().unwrap_or_default().to_owned()
    }
}
