//! `past-future`.

use kvtide_runtime::Controls;
use rand::RngExt;

use super::answers::Answers;
use super::history::History;
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
    stream: Stream,
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
        let stream = seed::stream(0, "past-future", 0);
        PastFuture { prediction, controls, history: History::new(), stream, answers: Answers::default() }
    }
}

impl Controller for PastFuture {
    fn control(&mut self, node: &Node) -> Controls {
        let history = &mut self.history;
        self.answers.finished(node, |_, request| history.push(request.generated));
        let controls = self.controls.unwrap_or_else(|| node.scheduler().default_controls());
        let (history, stream) = (&self.history, &mut self.stream);
        let mut foresight = LengthHistory { history, stream, prediction: self.prediction };
        leaving_free(node, reserve(node, controls.admission, &mut foresight, SHARE), controls)
    }

    fn interval(&self) -> Option<u32> {
        Some(1)
    }
}

struct LengthHistory<'a> {
    history: &'a History,
    stream: &'a mut Stream,
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
            Prediction::Drawn => self.stream.random(),
            Prediction::Quantile(quantile) => quantile,
        };
        let longest = node.scheduler().config().max_model_len.saturating_sub(request.prompt_tokens);
        self.history.length(request.generated, longest, quantile).saturating_sub(request.generated)
    }
}
