//! `past-future`.

use std::collections::VecDeque;

use kvtide_runtime::Controls;
use rand::RngExt;

use super::answers::Answers;
use super::leaving_free;
use super::peak::{LengthPredictor, reserve};
use crate::env::{Controller, Node};
use crate::sched::{RequestId, RequestView};
use crate::seed::{self, Stream};

/// `past-future`: admit while the peak predicted for the running requests and the next one fits.
///
/// Gong et al. 2025, "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS '25), with the constants of its
/// implementation (`LightLLM`, `impl_past_future.py`): a request that has generated `g` tokens is predicted to end as one of
/// the last 200 answers that were longer than `g`; several such futures are drawn and the worst one counts; 5 % of the pool
/// stays in reserve. With [`Prediction::Quantile`] nothing is drawn: every request ends at that quantile.
#[derive(Debug, Clone)]
pub struct PastFuture {
    prediction: Prediction,
    controls: Option<Controls>,
    history: History,
    answers: Answers,
}

/// Which of the recent answers a request is taken to end like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Prediction {
    /// Drawn anew at each decision.
    Drawn,
    /// This quantile, from 0 to 1, of those longer than what the request has generated.
    Quantile(f64),
}

/// Share of the pool the predicted peak may take (`REVERSED = 0.05` in `LightLLM`).
const SHARE: f64 = 0.95;
/// Predictions per decision to aim at, and most futures they are spread over.
const MIN_SAMPLES: usize = 200;
const MAX_DRAWS: usize = 5;

impl PastFuture {
    /// A controller that has seen nothing yet. `controls` are the other heads, their watermark ignored; `None` for the
    /// engine's default.
    pub fn new(prediction: Prediction, controls: Option<Controls>) -> PastFuture {
        PastFuture { prediction, controls, history: History::new(), answers: Answers::default() }
    }
}

impl Controller for PastFuture {
    fn control(&mut self, node: &Node) -> Controls {
        let history = &mut self.history;
        self.answers.finished(node, |request| history.push(request.generated));
        let controls = self.controls.unwrap_or_else(|| node.scheduler().default_controls());
        let mut foresight = LengthHistory { history: &mut self.history, prediction: self.prediction };
        leaving_free(node, reserve(node, controls.admission, &mut foresight, SHARE), controls)
    }

    fn interval(&self) -> Option<u32> {
        Some(1)
    }
}

struct LengthHistory<'a> {
    history: &'a mut History,
    prediction: Prediction,
}

impl LengthPredictor for LengthHistory<'_> {
    fn draws(&self, running: usize) -> usize {
        match self.prediction {
            Prediction::Drawn => MAX_DRAWS.min(MIN_SAMPLES / running.max(1) + 1),
            Prediction::Quantile(_) => 1,
        }
    }

    fn remaining(&mut self, node: &Node, _: RequestId, request: &RequestView) -> u32 {
        let quantile = match self.prediction {
            Prediction::Drawn => self.history.stream.random(),
            Prediction::Quantile(quantile) => quantile,
        };
        let longest = node.scheduler().config().max_model_len.saturating_sub(request.prompt_tokens);
        self.history.length(request.generated, longest, quantile).saturating_sub(request.generated)
    }
}

/// Lengths of recent answers.
#[derive(Debug, Clone)]
struct History {
    recent: VecDeque<u32>,
    /// The same in ascending order.
    sorted: Vec<u32>,
    stream: Stream,
}

/// Answers remembered.
const WINDOW: usize = 200;
/// Until answers have been seen, so many of this length are assumed (`router_max_new_token_len`).
const ASSUMED: (usize, u32) = (WINDOW / 2, 1024);

impl History {
    fn new() -> History {
        let assumed = vec![ASSUMED.1; ASSUMED.0];
        History { recent: assumed.clone().into(), sorted: assumed, stream: seed::stream(0, "past-future", 0) }
    }

    fn push(&mut self, length: u32) {
        if self.recent.len() == WINDOW
            && let Some(oldest) = self.recent.pop_front()
        {
            self.sorted.remove(self.sorted.partition_point(|&known| known < oldest));
        }
        self.recent.push_back(length);
        self.sorted.insert(self.sorted.partition_point(|&known| known < length), length);
    }

    /// The quantile of what an answer of more than `generated` tokens comes to: of the recent ones that long, between
    /// `generated` itself and the `longest` possible, interpolated. At least one token more.
    fn length(&self, generated: u32, longest: u32, quantile: f64) -> u32 {
        let longer = &self.sorted[self.sorted.partition_point(|&known| known <= generated)..];
        let at = |index: usize| match index {
            0 => generated,
            index => longer.get(index - 1).copied().unwrap_or(longest),
        };
        let position = quantile * (longer.len() + 1) as f64;
        let below = (position as usize).min(longer.len());
        let (from, to) = (f64::from(at(below)), f64::from(at(below + 1)));
        let length = (from + (to - from) * (position - below as f64)).round() as u32;
        length.clamp(generated + 1, longest.max(generated + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_is_the_last_two_hundred() {
        let mut history = History::new();
        for length in 1..=300 {
            history.push(length);
        }
        assert_eq!(history.sorted, (101..=300).collect::<Vec<u32>>());
        assert_eq!(history.recent.len(), WINDOW);
    }

    #[test]
    fn predictions_are_conditioned_on_what_is_generated() {
        let mut history = History::new();
        for index in 0..WINDOW {
            history.push([10, 20, 30, 40][index % 4]);
        }
        let length = |generated, quantile| history.length(generated, 1000, quantile);
        assert_eq!([0.0, 1.0].map(|quantile| length(0, quantile)), [1, 1000]);
        // Fifty of each: the first half of an answer's chances end at 20 or before.
        assert_eq!([0.2, 0.4, 0.6, 0.9].map(|quantile| length(0, quantile)), [10, 20, 30, 40]);
        assert_eq!([0.2, 0.6].map(|quantile| length(20, quantile)), [30, 40]);
        // Longer than anything seen: somewhere up to the longest possible.
        assert_eq!([0.0, 0.5, 1.0].map(|quantile| length(40, quantile)), [41, 520, 1000]);
        assert_eq!(length(1000, 0.5), 1001);
    }
}
