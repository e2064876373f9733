//! Longer or shorter requests: one factor for prompts, one for answers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::WorkloadError;
use crate::trace::{MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, Request};

/// Factors accepted.
pub const LENGTH_FACTORS: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// What lengths are multiplied by, within [`LENGTH_FACTORS`]. Written `0.5`, or `PROMPT:OUTPUT` as in `0.5:2`.
///
/// A scaled length is rounded, at least 1 token and at most what a trace may have. Arrivals stay, so the same requests a
/// second are so much more or less work.
///
/// Prefix hashes keep their meaning: a hash of 512 tokens of a prompt that is halved is one of 256, rounded down, so what
/// two prompts have in common shrinks as they do, and the share of a prompt that a cache finds stays as it was but for
/// rounding. Where answers get another factor than prompts, a conversation's next prompt still quotes its last answer at the
/// prompt's factor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LengthScale {
    /// Factor of prompts.
    pub prompt: f64,
    /// Factor of answers.
    pub output: f64,
}

impl LengthScale {
    /// Lengths as they are.
    pub const ONE: LengthScale = LengthScale::both(1.0);

    /// Prompts and answers by one factor.
    pub const fn both(factor: f64) -> LengthScale {
        LengthScale { prompt: factor, output: factor }
    }

    /// Scales each request.
    pub fn apply(self, requests: &mut [Request]) {
        if self == LengthScale::ONE {
            return;
        }
        for request in requests {
            self.apply_to(request);
        }
    }

    fn apply_to(self, request: &mut Request) {
        request.prompt_tokens = scaled(request.prompt_tokens, self.prompt, MAX_PROMPT_TOKENS);
        request.output_tokens = scaled(request.output_tokens, self.output, MAX_OUTPUT_TOKENS);
        if !request.hash_ids.is_empty() {
            // Rounded down, `n` blocks that fitted the prompt fit it still, unless they were so small that one is the least.
            let block_tokens = (f64::from(request.hash_block_tokens) * self.prompt) as u32;
            request.hash_block_tokens = block_tokens.clamp(1, MAX_PROMPT_TOKENS);
            request.hash_ids = request.hash_ids.first((request.prompt_tokens / request.hash_block_tokens) as usize);
        }
    }

    /// Refuses factors out of range.
    ///
    /// # Errors
    /// Which one.
    pub fn check(self) -> Result<(), WorkloadError> {
        match [self.prompt, self.output].into_iter().find(|factor| !LENGTH_FACTORS.contains(factor)) {
            Some(factor) => Err(WorkloadError::LengthFactor(factor)),
            None => Ok(()),
        }
    }
}

impl Default for LengthScale {
    fn default() -> LengthScale {
        LengthScale::ONE
    }
}

fn scaled(tokens: u32, factor: f64, most: u32) -> u32 {
    ((f64::from(tokens) * factor).round() as u32).clamp(1, most)
}

impl fmt::Display for LengthScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LengthScale { prompt, output } = self;
        if prompt == output { write!(f, "{prompt}") } else { write!(f, "{prompt}:{output}") }
    }
}

impl FromStr for LengthScale {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<LengthScale, WorkloadError> {
        let (prompt, output) = text.split_once(':').unwrap_or((text, text));
        let factor = |part: &str| {
            let wrong =
                |_| WorkloadError::spec(text, "is not a length factor: expected 0.5, or PROMPT:OUTPUT as in 0.5:2");
            part.trim().parse::<f64>().map_err(wrong)
        };
        let scale = LengthScale { prompt: factor(prompt)?, output: factor(output)? };
        scale.check().map(|()| scale)
    }
}

impl TryFrom<String> for LengthScale {
    type Error = WorkloadError;

    fn try_from(text: String) -> Result<LengthScale, WorkloadError> {
        text.parse()
    }
}

impl From<LengthScale> for String {
    fn from(scale: LengthScale) -> String {
        scale.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Micros;

    fn hashed(prompt_tokens: u32, block_tokens: u32) -> Request {
        Request {
            hash_ids: (0..u64::from(prompt_tokens / block_tokens)).collect(),
            hash_block_tokens: block_tokens,
            ..Request::new(Micros(7), prompt_tokens, 10)
        }
    }

    #[test]
    fn a_prefix_shrinks_with_its_prompt() {
        let mut requests = [hashed(1_300, 512)];
        LengthScale { prompt: 0.5, output: 3.0 }.apply(&mut requests);
        let [request] = requests;
        assert_eq!((request.prompt_tokens, request.output_tokens, request.arrival), (650, 30, Micros(7)));
        assert_eq!((request.hash_block_tokens, &*request.hash_ids), (256, &[0, 1][..]));
    }

    #[test]
    fn no_length_is_0_and_hashes_always_fit() {
        for factor in [0.01, 0.1, 0.3, 0.999, 1.5, 7.7, 100.0] {
            for (prompt, block) in [(1, 1), (5, 1), (17, 16), (1_000, 3), (1 << 24, 512)] {
                let mut requests = [hashed(prompt, block)];
                LengthScale::both(factor).apply(&mut requests);
                let [Request { prompt_tokens, output_tokens, hash_block_tokens, hash_ids, .. }] = &requests;
                assert!(*prompt_tokens >= 1 && *output_tokens >= 1 && *hash_block_tokens >= 1);
                assert!(hash_ids.len() as u64 * u64::from(*hash_block_tokens) <= u64::from(*prompt_tokens));
            }
        }
    }

    #[test]
    fn as_text() {
        for (text, scale) in [("0.5", LengthScale::both(0.5)), ("0.5:2", LengthScale { prompt: 0.5, output: 2.0 })] {
            assert_eq!((text.parse(), scale.to_string()), (Ok(scale), text.to_owned()));
        }
        let said = |text: &str| text.parse::<LengthScale>().unwrap_err().to_string();
        assert_eq!(said("x"), "`x`: is not a length factor: expected 0.5, or PROMPT:OUTPUT as in 0.5:2");
        assert_eq!(said("1:nan"), "length factor NaN: must be from 0.01 to 100");
        assert_eq!(said("0"), "length factor 0: must be from 0.01 to 100");
    }
}
