//! Distributions of lengths, as measured: a probability for each.

use rand::RngExt;

use super::super::error::{Fault, excerpt};
use crate::seed::Stream;

/// How far from 1 probabilities may add up before they are no distribution.
pub const PROBABILITY_TOLERANCE: f64 = 1e-3;

/// Most images, or other parts, of one request.
pub const MAX_PARTS: u32 = 1_024;

/// A distribution of lengths: 12 bytes for each.
#[derive(Debug, Clone, PartialEq)]
pub struct LengthDistribution {
    /// Lengths that occur, rising.
    lengths: Box<[u32]>,
    /// Probability of that length or less; the last is 1.
    cumulative: Box<[f64]>,
}

/// Part of a prompt: so many pieces, each as long as drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptPart {
    /// How many pieces; one if `None`.
    pub count: Option<LengthDistribution>,
    /// How long a piece is, tokens.
    pub tokens: LengthDistribution,
}

impl LengthDistribution {
    /// Reads `{165: 0.0003, 211: 0.9997}`: whole numbers up to `most`, each once, and their probabilities. `None` if there
    /// are none.
    pub(super) fn parse(text: &str, most: u32) -> Result<Option<LengthDistribution>, Fault> {
        let body = text.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let body = body.ok_or_else(|| {
            Fault::Row(format!("`{}` is not a distribution: expected {{LENGTH: SHARE, …}}", excerpt(text)))
        })?;
        let mut points = Vec::new();
        for point in body.split(',').filter(|point| !point.trim().is_empty()) {
            points.push(parse_point(point, most)?);
        }
        points.sort_by_key(|(length, _)| *length);
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Fault::Row(format!("length {} is given twice", pair[0].0)));
        }
        LengthDistribution::of(&points)
    }

    fn of(points: &[(u32, f64)]) -> Result<Option<LengthDistribution>, Fault> {
        if points.is_empty() {
            return Ok(None);
        }
        let total: f64 = points.iter().map(|(_, share)| share).sum();
        if (total - 1.0).abs() > PROBABILITY_TOLERANCE {
            return Err(Fault::Row(format!("shares add up to {total}, not to 1")));
        }
        let mut passed = 0.0;
        let mut cumulative: Box<[f64]> = points
            .iter()
            .map(|(_, share)| {
                passed += share / total;
                passed
            })
            .collect();
        // Whatever rounding has left: a draw below 1 always finds a length.
        cumulative[points.len() - 1] = 1.0;
        Ok(Some(LengthDistribution { lengths: points.iter().map(|(length, _)| *length).collect(), cumulative }))
    }

    /// How many lengths there are.
    pub fn num_points(&self) -> usize {
        self.lengths.len()
    }

    /// Mean.
    pub fn mean(&self) -> f64 {
        let mut before = 0.0;
        let weighted = self.lengths.iter().zip(&self.cumulative).map(|(length, cumulative)| {
            let share = cumulative - before;
            before = *cumulative;
            f64::from(*length) * share
        });
        weighted.sum()
    }

    /// Draws a length, which may be 0.
    pub fn draw(&self, stream: &mut Stream) -> u32 {
        let share = stream.random::<f64>();
        self.lengths[self.cumulative.partition_point(|cumulative| *cumulative <= share).min(self.lengths.len() - 1)]
    }
}

impl PromptPart {
    /// Mean tokens: pieces and their lengths are drawn independently.
    pub fn mean(&self) -> f64 {
        self.count.as_ref().map_or(1.0, LengthDistribution::mean) * self.tokens.mean()
    }

    /// Draws the tokens of all pieces.
    pub fn draw(&self, stream: &mut Stream) -> u64 {
        let pieces = self.count.as_ref().map_or(1, |count| count.draw(stream));
        (0..pieces).map(|_| u64::from(self.tokens.draw(stream))).sum()
    }
}

fn parse_point(point: &str, most: u32) -> Result<(u32, f64), Fault> {
    let not = |field, value: &str, expected| Fault::NotA { field, value: excerpt(value), expected };
    let (length, share) = point.split_once(':').ok_or_else(|| not("entry", point, "LENGTH: SHARE"))?;
    let length: u64 = length.trim().parse().map_err(|_| not("length", length, "a whole number"))?;
    if length > u64::from(most) {
        return Err(Fault::AboveLimit { field: "length", value: length.to_string(), limit: u64::from(most) });
    }
    let share_value: f64 = share.trim().parse().map_err(|_| not("share", share, "a number from 0 to 1"))?;
    if !(0.0..=1.0 + PROBABILITY_TOLERANCE).contains(&share_value) {
        return Err(not("share", share, "a number from 0 to 1"));
    }
    Ok((length as u32, share_value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;

    #[test]
    fn lengths_come_as_often_as_they_say() {
        let lengths = LengthDistribution::parse("{30: 0.25, 10: 0.75}", 100).unwrap().unwrap();
        assert_eq!(lengths.mean(), 15.0);
        let mut stream = seed::stream(1, "test", 0);
        let long = (0..10_000).filter(|_| lengths.draw(&mut stream) == 30).count();
        assert!((2_300..2_700).contains(&long), "{long}");
        // Three images of 100 tokens or one, evenly.
        let count = LengthDistribution::parse("{1: 0.5, 3: 0.5}", MAX_PARTS).unwrap();
        let part = PromptPart { count, tokens: LengthDistribution::parse("{100: 1.0}", 100).unwrap().unwrap() };
        let drawn: u64 = (0..1_000).map(|_| part.draw(&mut stream)).sum();
        assert_eq!(part.mean(), 200.0);
        assert!((190_000..210_000).contains(&drawn), "{drawn}");
    }

    #[test]
    fn shares_are_normalised_or_refused() {
        assert_eq!(LengthDistribution::parse("{5: 0.9995}", 9).unwrap().unwrap().mean(), 5.0);
        assert_eq!(LengthDistribution::parse("{}", 9), Ok(None));
        let said = |text: &str| LengthDistribution::parse(text, 9).unwrap_err().to_string();
        assert_eq!(said("{5: 0.5, 6: 0.4}"), "shares add up to 0.9, not to 1");
        assert_eq!(said("{5: nan}"), "share `nan` is not a number from 0 to 1");
        assert_eq!(said("{5: -1.0}"), "share `-1.0` is not a number from 0 to 1");
        assert_eq!(said("{5: inf}"), "share `inf` is not a number from 0 to 1");
        assert_eq!(said("{5}"), "entry `5` is not LENGTH: SHARE");
        assert_eq!(said("{5.5: 1.0}"), "length `5.5` is not a whole number");
        assert_eq!(said("{-5: 1.0}"), "length `-5` is not a whole number");
        assert_eq!(said("{10: 1.0}"), "length `10` is above the limit of 9");
        assert_eq!(said("{5: 0.5, 5: 0.5}"), "length 5 is given twice");
        assert_eq!(said("[5, 6]"), "`[5, 6]` is not a distribution: expected {LENGTH: SHARE, …}");
    }
}
