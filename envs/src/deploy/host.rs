//! The host's share of serving: the engine's loop on the CPU beside the accelerator, and what only a client sees.
//!
//! A step of vLLM's V1 is planned, its inputs are prepared and its kernels launched, and its tokens are taken back, by Python.
//! Without asynchronous scheduling the accelerator waits meanwhile. With it the next step's share runs beside this one's kernels,
//! and what is left is the longer of both, and a gap in which one hands over to the other.
//!
//! Kernels recorded as a CUDA graph are launched at once: all of a step in which everybody decodes, the pieces between
//! attention where a prompt is computed too, and none beyond the largest size that was recorded (vLLM's
//! `cudagraph_mode=FULL_AND_PIECEWISE` and `max_cudagraph_capture_size`). Whoever launches faster than kernels run pays nothing.

use serde::{Deserialize, Serialize};

use super::SettingError;

/// What the engine's loop takes on the CPU, in seconds.
///
/// The defaults are those of vLLM 0.19 and 0.22 with asynchronous scheduling: `exposed` and `exposed_sequence` from the seconds of a
/// served run of Llama 3.1 8B on an RTX PRO 6000 (`LLMServingSim` bench) in which everybody decoded, over what its kernels take by
/// tables; `chunk_overhead` from runs with several token budgets (P-PAS, arXiv 2608.15171), 4.4 ms of a 3B on an RTX 5090 and 6.2 on an A100, 0.3 of a
/// 0.5B. What is hidden, `step` and `sequence`, is told by none of them: it matters without asynchronous scheduling and for models so
/// small that the loop is what takes time. For orientation: V0's left the accelerator waiting 5 to 13 ms a step (vLLM RFC 6854);
/// asynchronous scheduling took the wait of 256 sequences from 5 or 6 ms to less than 0.3 (vLLM issue 10634).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTimes {
    /// A step, however small: planning, inputs, sampled tokens taken back. From 0 to 10.
    pub step: f64,
    /// The same for each sequence of the step. From 0 to 10.
    pub sequence: f64,
    /// What asynchronous scheduling does not hide of a step: sampling, handing over. From 0 to 10.
    pub exposed: f64,
    /// The same for each sequence of the step. From 0 to 10.
    pub exposed_sequence: f64,
    /// What comes on top of a step that computes prompts, asynchronous or not: its attention is prepared and launched piece by
    /// piece. From 0 to 10.
    pub chunk_overhead: f64,
    /// One launch, of a kernel or of a graph, as a compiled model makes it. From 0 to 1.
    pub launch: f64,
    /// Launches of a layer without a graph, from 1 to 1000.
    pub layer_launches: u32,
    /// Launches of a layer whose attention alone has no graph, from 1 to 1000.
    pub piece_launches: u32,
    /// Most tokens of a step that graphs were recorded for; 0 for none, as under `enforce_eager`.
    pub cudagraph_tokens: u32,
    /// What a client sees of a request beyond the engine's time.
    #[serde(default)]
    pub client: ClientTimes,
}

impl Default for HostTimes {
    fn default() -> HostTimes {
        HostTimes {
            step: 2e-3,
            sequence: 10e-6,
            exposed: 0.5e-3,
            exposed_sequence: 12e-6,
            chunk_overhead: 5e-3,
            // 5 to 10 µs a launch is what PyTorch's own measurements have (Nguyen et al. 2021, "Accelerating PyTorch with CUDA
            // Graphs").
            launch: 5e-6,
            layer_launches: 12,
            piece_launches: 5,
            cudagraph_tokens: 512,
            client: ClientTimes::default(),
        }
    }
}

/// What a request takes between client and engine, in seconds: HTTP, the tokeniser, and the way of tokens back. Benchmarks that
/// measure at the client have it in every latency, the engine's own metrics have not.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientTimes {
    /// A request, there and back. From 0 to 10.
    pub request_s: f64,
    /// Reading a token of its prompt. From 0 to 1.
    pub prompt_token_s: f64,
    /// Sending a token of its answer. From 0 to 1.
    pub output_token_s: f64,
}

/// A few milliseconds for HTTP and processes on one machine, and 2 µs for a token of the prompt: 1.2 to 3 in runs with prompts of 25,000
/// tokens (P-PAS), 13 on a slow host; 10 µs for short ones in tenstorrent/tt-inference-server issue 2173. Tokens go out beside the next
/// step.
impl Default for ClientTimes {
    fn default() -> ClientTimes {
        ClientTimes { request_s: 5e-3, prompt_token_s: 2e-6, output_token_s: 0.0 }
    }
}

impl ClientTimes {
    /// Nothing: what the engine itself measures.
    pub const NONE: ClientTimes = ClientTimes { request_s: 0.0, prompt_token_s: 0.0, output_token_s: 0.0 };

    /// What comes on top of the time to the first token of a prompt of so many tokens. Seconds.
    pub fn before_first(&self, prompt_tokens: u32) -> f64 {
        self.request_s + f64::from(prompt_tokens) * self.prompt_token_s + self.output_token_s
    }

    /// What comes on top of the end-to-end time of a request. Seconds.
    pub fn end_to_end(&self, prompt_tokens: u32, output_tokens: u32) -> f64 {
        let others = f64::from(output_tokens.saturating_sub(1));
        self.before_first(prompt_tokens) + others * self.output_token_s
    }
}

impl HostTimes {
    /// Checks every range.
    ///
    /// # Errors
    /// The first key that is wrong, its value, and what would do.
    pub fn validate(&self) -> Result<(), SettingError> {
        const SECONDS: (f64, &str) = (10.0, "seconds, from 0 to 10");
        const SECOND: (f64, &str) = (1.0, "seconds, from 0 to 1");
        let ClientTimes { request_s, prompt_token_s, output_token_s } = self.client;
        let times = [
            ("step", self.step, SECONDS),
            ("sequence", self.sequence, SECONDS),
            ("exposed", self.exposed, SECONDS),
            ("exposed_sequence", self.exposed_sequence, SECONDS),
            ("chunk_overhead", self.chunk_overhead, SECONDS),
            ("launch", self.launch, SECOND),
            ("request_s", request_s, SECONDS),
            ("prompt_token_s", prompt_token_s, SECOND),
            ("output_token_s", output_token_s, SECOND),
        ];
        if let Some((key, value, (_, expected))) =
            times.into_iter().find(|(_, value, (most, _))| !(0.0..=*most).contains(value))
        {
            return Err(SettingError::value(key, &value.to_string(), expected));
        }
        let counts = [("layer_launches", self.layer_launches), ("piece_launches", self.piece_launches)];
        match counts.into_iter().find(|(_, count)| !(1..=1000).contains(count)) {
            Some((key, count)) => Err(SettingError::value(key, &count.to_string(), "launches, from 1 to 1000")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(HostTimes::default().validate(), Ok(()));
        let error = |change: fn(&mut HostTimes)| {
            let mut changed = HostTimes::default();
            change(&mut changed);
            changed.validate().unwrap_err().to_string()
        };
        assert_eq!(error(|host| host.step = -1.0), "step=\"-1\": expected seconds, from 0 to 10");
        assert_eq!(
            error(|host| host.client.prompt_token_s = 2.0),
            "prompt_token_s=\"2\": expected seconds, from 0 to 1"
        );
        assert!(error(|host| host.exposed = f64::NAN).starts_with("exposed=\"NaN\""));
        assert_eq!(error(|host| host.piece_launches = 0), "piece_launches=\"0\": expected launches, from 1 to 1000");
    }

    #[test]
    fn a_client_waits_for_the_way_there_and_back() {
        let client = ClientTimes { request_s: 0.004, prompt_token_s: 1e-6, output_token_s: 1e-5 };
        assert!((client.before_first(1000) - 0.005_01).abs() < 1e-12);
        assert!((client.end_to_end(1000, 11) - 0.005_11).abs() < 1e-12);
        assert_eq!(ClientTimes::NONE.end_to_end(9, 9), 0.0);
    }
}
