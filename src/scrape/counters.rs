//! A server's counters at one moment, and what lies between two moments.

use std::collections::{BTreeMap, BTreeSet};

use kvtide_envs::trace::rates::{Counted, LengthCounts, LengthsKnown, MAX_BUCKETS};

use super::exposition::{self, Sample};

/// What an engine calls its counters.
struct Names {
    engine: &'static str,
    /// Requests that ended, by why.
    ended: &'static str,
    /// Histogram and counter of prompts' tokens.
    prompt: (&'static str, &'static str),
    /// Histogram and counter of answers' tokens.
    output: (&'static str, &'static str),
    /// Gauges of requests that are here.
    running: &'static str,
    waiting: &'static str,
    /// The label by which engines of one server differ.
    engine_label: &'static str,
}

/// vLLM's V1 engine, and SGLang's (its histograms with `--collect-tokens-histogram`).
const ENGINES: [Names; 2] = [
    Names {
        engine: "vllm",
        ended: "vllm:request_success_total",
        prompt: ("vllm:request_prompt_tokens", "vllm:prompt_tokens_total"),
        output: ("vllm:request_generation_tokens", "vllm:generation_tokens_total"),
        running: "vllm:num_requests_running",
        waiting: "vllm:num_requests_waiting",
        engine_label: "engine",
    },
    Names {
        engine: "sglang",
        ended: "sglang:num_requests_total",
        prompt: ("sglang:prompt_tokens_histogram", "sglang:prompt_tokens_total"),
        output: ("sglang:generation_tokens_histogram", "sglang:generation_tokens_total"),
        running: "sglang:num_running_reqs",
        waiting: "sglang:num_queue_reqs",
        engine_label: "dp_rank",
    },
];

/// Which lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Prompt,
    Output,
}

/// A number that only rises while the server lives.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Ended,
    /// Tokens, as they are computed.
    Tokens(Side),
    /// Tokens of requests that ended.
    Sum(Side),
    /// Requests that ended with at most so many tokens; `u32::MAX` is all.
    Bucket(Side, u32),
}

/// A server's counters at one moment, all its engines together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counters {
    place: usize,
    rising: BTreeMap<Key, f64>,
    /// Requests that wait or run; `None` where the server does not say.
    in_flight: Option<f64>,
    pub(super) models: BTreeSet<String>,
    pub(super) engines: BTreeSet<String>,
    /// Lines that made no sense.
    pub(super) skipped: u64,
    /// The first label that was asked for and that no counter has.
    pub(super) unknown_label: Option<String>,
}

/// What lies between two moments.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Difference {
    pub(super) requests: u64,
    pub(super) completed: u64,
    pub(super) prompt: LengthCounts,
    pub(super) output: LengthCounts,
    pub(super) resets: u32,
    /// Requests that must be taken off the next difference, since counters of one look are not of one moment.
    pub(super) carried: i64,
}

impl Counters {
    /// Of an exposition, from samples with the `labels`; `None` if it is of no engine that is known.
    pub(super) fn read(text: &str, labels: &[(String, String)]) -> Option<Counters> {
        ENGINES.iter().enumerate().find_map(|(place, names)| Counters::of(text, labels, place, names))
    }

    fn of(text: &str, labels: &[(String, String)], place: usize, names: &Names) -> Option<Counters> {
        let family = |name: &str| {
            [names.ended, names.prompt.1, names.output.1, names.running, names.waiting].contains(&name)
                || [names.prompt.0, names.output.0]
                    .iter()
                    .any(|histogram| matches!(name.strip_prefix(histogram), Some("_bucket" | "_sum")))
        };
        let (samples, skipped) = exposition::parse(text, family);
        let is_chosen = |sample: &&Sample| {
            let differs =
                |(key, value): &(String, String)| !matches!(sample.label(key), "") && sample.label(key) != value;
            !labels.iter().any(differs)
        };
        let is_unknown = |(key, _): &&(String, String)| samples.iter().all(|sample| sample.label(key).is_empty());
        let unknown_label = labels.iter().find(is_unknown).map(|(key, _)| key.clone());
        let mut counters = Counters { place, skipped, unknown_label, ..Counters::default() };
        for sample in samples.iter().filter(is_chosen) {
            counters.add(names, sample);
        }
        counters.rising.contains_key(&Key::Ended).then_some(counters)
    }

    fn add(&mut self, names: &Names, sample: &Sample) {
        let place = |set: &mut BTreeSet<String>, value: &str| {
            if !value.is_empty() && !set.contains(value) {
                set.insert(value.to_owned());
            }
        };
        place(&mut self.models, sample.label("model_name"));
        place(&mut self.engines, sample.label(names.engine_label));
        if [names.running, names.waiting].contains(&sample.name) {
            *self.in_flight.get_or_insert(0.0) += sample.value;
            return;
        }
        let side = |side: Side, (histogram, counter): (&str, &str)| {
            if sample.name == counter {
                return Some(Key::Tokens(side));
            }
            match sample.name.strip_prefix(histogram)? {
                "_sum" => Some(Key::Sum(side)),
                _ => Some(Key::Bucket(side, bound(sample.label("le"))?)),
            }
        };
        let key = if sample.name == names.ended {
            Some(Key::Ended)
        } else {
            side(Side::Prompt, names.prompt).or_else(|| side(Side::Output, names.output))
        };
        match key {
            Some(key) => *self.rising.entry(key).or_default() += sample.value,
            None => self.skipped += 1,
        }
    }

    pub(super) fn engine(&self) -> &'static str {
        ENGINES[self.place].engine
    }

    pub(super) fn counted(&self) -> Counted {
        if self.in_flight.is_some() { Counted::Arrivals } else { Counted::Completions }
    }

    pub(super) fn lengths_known(&self) -> LengthsKnown {
        let has = |side| self.rising.contains_key(&Key::Bucket(side, u32::MAX));
        if has(Side::Prompt) && has(Side::Output) { LengthsKnown::Histograms } else { LengthsKnown::Means }
    }

    /// What has come to pass since `before`; `carried` is what is left of the difference before.
    pub(super) fn since(&self, before: &Counters, carried: i64) -> Difference {
        let has_restarted = before.rising.iter().any(|(key, was)| self.rising.get(key).is_some_and(|is| is < was));
        let was = |key: &Key| if has_restarted { 0.0 } else { before.rising.get(key).copied().unwrap_or_default() };
        let risen = |key: &Key| self.rising.get(key).map_or(0.0, |is| (is - was(key)).max(0.0));
        let completed = whole(risen(&Key::Ended));
        let in_flight = |counters: &Counters| whole(counters.in_flight.unwrap_or_default()) as i64;
        let waited_before = if has_restarted { 0 } else { in_flight(before) };
        // Those of before a restart are gone, and so is what was carried.
        let carried = if has_restarted { 0 } else { carried };
        let more = if self.in_flight.is_some() { in_flight(self) - waited_before } else { 0 };
        let arrived = completed as i64 + more + carried;
        Difference {
            requests: arrived.max(0) as u64,
            completed,
            prompt: self.lengths(Side::Prompt, completed, risen),
            output: self.lengths(Side::Output, completed, risen),
            resets: u32::from(has_restarted),
            carried: arrived.min(0),
        }
    }

    /// Lengths of those that ended.
    fn lengths(&self, side: Side, completed: u64, risen: impl Fn(&Key) -> f64) -> LengthCounts {
        if self.lengths_known() == LengthsKnown::Means {
            let tokens = if completed > 0 { whole(risen(&Key::Tokens(side))) } else { 0 };
            return LengthCounts { tokens, ..LengthCounts::default() };
        }
        let (mut buckets, mut below, mut over) = (Vec::new(), 0, 0);
        for key in self.rising.keys() {
            let Key::Bucket(of, most) = *key else { continue };
            if of != side {
                continue;
            }
            let up_to = whole(risen(key));
            // Each counts those of all before it; less is none.
            let count = up_to.saturating_sub(below);
            below = below.max(up_to);
            if most == u32::MAX {
                over = count;
            } else {
                buckets.push((most, count));
            }
        }
        if buckets.len() > MAX_BUCKETS {
            let beyond = buckets.split_off(MAX_BUCKETS);
            over += beyond.iter().map(|bucket| bucket.1).sum::<u64>();
        }
        LengthCounts { tokens: whole(risen(&Key::Sum(side))), buckets, over }
    }
}

/// A count as a whole number; none is larger than what fits where counts are added up.
fn whole(count: f64) -> u64 {
    count.round().min(1e15) as u64
}

/// The bound of a bucket, tokens; `None` if it is none.
fn bound(text: &str) -> Option<u32> {
    let bound: f64 = text.parse().ok()?;
    if bound == f64::INFINITY {
        return Some(u32::MAX);
    }
    // Whoever has less than a token has none, and is read as 1.
    (bound >= 0.0 && bound < f64::from(u32::MAX)).then_some((bound as u32).max(1))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// vLLM's text of so many ended requests, half of whose prompts have at most 100 tokens, and so many here.
    fn text(engine: u32, ended: u64, here: u64) -> String {
        let labels = format!("engine=\"{engine}\",model_name=\"llama\"");
        let half = ended / 2;
        let mut text = format!(
            "vllm:request_success_total{{{labels},finished_reason=\"stop\"}} {half}\n\
             vllm:request_success_total{{{labels},finished_reason=\"length\"}} {}\n\
             vllm:num_requests_running{{{labels}}} {here}\nvllm:num_requests_waiting{{{labels}}} 0\n",
            ended - half
        );
        for name in ["prompt", "generation"] {
            let _ = write!(
                text,
                "vllm:request_{name}_tokens_bucket{{{labels},le=\"100.0\"}} {half}\n\
                 vllm:request_{name}_tokens_bucket{{{labels},le=\"200.0\"}} {ended}\n\
                 vllm:request_{name}_tokens_bucket{{{labels},le=\"+Inf\"}} {ended}\n\
                 vllm:request_{name}_tokens_sum{{{labels}}} {}\n",
                ended * 110
            );
        }
        text
    }

    fn read(text: &str) -> Counters {
        Counters::read(text, &[]).unwrap()
    }

    #[test]
    fn what_arrived_is_what_ended_and_what_is_here_more() {
        let (before, after) = (read(&text(0, 10, 3)), read(&text(0, 20, 8)));
        let difference = after.since(&before, 0);
        assert_eq!((difference.requests, difference.completed, difference.carried), (15, 10, 0));
        assert_eq!(difference.prompt, LengthCounts { tokens: 1_100, buckets: vec![(100, 5), (200, 5)], over: 0 });
        // Fewer here than have gone: the look before saw more than there were.
        let drained = read(&text(0, 20, 5)).since(&after, 0);
        assert_eq!((drained.requests, drained.carried), (0, -3));
        assert_eq!(read(&text(0, 24, 5)).since(&read(&text(0, 20, 5)), -3).requests, 1);
    }

    #[test]
    fn engines_are_added_up_and_labels_choose_among_them() {
        let both = text(0, 10, 1) + &text(1, 30, 2);
        let counters = read(&both);
        assert_eq!((counters.engines.len(), counters.models.len(), counters.in_flight), (2, 1, Some(3.0)));
        let one = Counters::read(&both, &[("engine".to_owned(), "1".to_owned())]).unwrap();
        assert_eq!(one.since(&read(&text(1, 20, 2)), 0).completed, 10);
        assert_eq!(Counters::read(&both, &[("engine".to_owned(), "7".to_owned())]), None);
    }

    #[test]
    fn a_restart_counts_from_nothing() {
        let (before, after) = (read(&text(0, 1_000, 9)), read(&text(0, 4, 2)));
        let difference = after.since(&before, -2);
        assert_eq!((difference.resets, difference.requests, difference.completed), (1, 6, 4));
        assert_eq!(difference.output.buckets, [(100, 2), (200, 2)]);
    }

    #[test]
    fn sglang_without_histograms_has_means() {
        let of = |ended: u32| {
            format!(
                "sglang:num_requests_total{{model_name=\"m\"}} {ended}\nsglang:prompt_tokens_total{{model_name=\"m\"}} {}\n\
                 sglang:generation_tokens_total{{model_name=\"m\"}} {}\nsglang:num_running_reqs{{model_name=\"m\"}} 0\n",
                ended * 100,
                ended * 7
            )
        };
        let (before, after) = (read(&of(5)), read(&of(8)));
        assert_eq!((after.engine(), after.lengths_known()), ("sglang", LengthsKnown::Means));
        let difference = after.since(&before, 0);
        assert_eq!((difference.completed, difference.prompt.tokens, difference.output.tokens), (3, 300, 21));
        let old = read("sglang:num_requests_total 3\n");
        assert_eq!(old.counted(), Counted::Completions);
    }

    #[test]
    fn hostile_numbers_are_lengths_of_nobody() {
        // Buckets that fall, bounds that are none, sums that are nothing.
        let odd = "vllm:request_success_total 5\nvllm:request_prompt_tokens_bucket{le=\"NaN\"} 5\n\
                   vllm:request_prompt_tokens_bucket{le=\"10\"} 5\nvllm:request_prompt_tokens_bucket{le=\"20\"} 3\n\
                   vllm:request_prompt_tokens_bucket{le=\"+Inf\"} 4\nvllm:request_generation_tokens_bucket{le=\"+Inf\"} 1e300\n\
                   vllm:request_prompt_tokens_sum NaN\nvllm:request_generation_tokens_bucket{le=\"-5\"} 5\n";
        let counters = read(odd);
        assert_eq!(counters.skipped, 3);
        let difference = counters.since(&Counters::default(), 0);
        assert_eq!(difference.prompt, LengthCounts { tokens: 0, buckets: vec![(10, 5), (20, 0)], over: 0 });
        assert_eq!(difference.output.over, 1_000_000_000_000_000);
        assert_eq!(Counters::read("", &[]), None);
        assert_eq!(Counters::read("<html>Not Found</html>\n", &[]), None);
    }
}
