//! What would come of it: copies of a node that go on by themselves.

use std::sync::Arc;

use super::Node;
use crate::kv::shared_prefixes;
use crate::sched::RequestId;
use crate::trace::Request;

/// What somebody takes to come, in place of what will.
#[derive(Debug, Clone)]
pub(crate) struct Future {
    /// Those that have arrived, and after them those that shall.
    requests: Arc<[Request]>,
    /// Of each, up to which of its hash ids others have the same.
    shared_prefixes: Arc<[u32]>,
    /// How long the answers of those that have arrived are taken to be; `None` where that is as it is.
    answers: Vec<Option<u32>>,
}

/// Who is taken to arrive.
#[derive(Debug, Clone)]
pub(crate) enum Coming {
    /// The next that will, with answers of these lengths, and nobody after them.
    WithAnswers(Vec<u32>),
    /// These, in order and not before now; they find nothing in a prefix cache.
    Others(Vec<Request>),
}

impl Node {
    /// Whether its blocks are more than numbers.
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// A copy of the node as it is between two steps. It goes on as this one will, step for step and to the last bit, and
    /// nothing it does is seen here. Its blocks are only numbers, so that its clock is the cost model's.
    #[must_use]
    pub fn fork(&self) -> Node {
        Node {
            scheduler: self.scheduler.clone(),
            cost: self.cost.clone(),
            memory: None,
            requests: Arc::clone(&self.requests),
            shared_prefixes: Arc::clone(&self.shared_prefixes),
            slo: self.slo,
            clients: self.clients,
            host: self.host,
            next_arrival: self.next_arrival,
            now: self.now,
            collector: self.collector.clone(),
            plan: self.plan.clone(),
            previous: self.previous.clone(),
            in_flight: self.in_flight,
            outcome: self.outcome.clone(),
            hash: self.hash,
            cadence: self.cadence,
            observer: self.observer.clone(),
            barren_steps: self.barren_steps,
        }
    }

    /// Sends `requests` instead of those that have not arrived yet: in an open loop the ones that come later than now, in a
    /// closed loop, where only their order counts, those after as many as have arrived.
    pub(in super::super) fn replace_future(&mut self, requests: &[Request]) {
        let arrived = self.next_arrival;
        let future = match self.clients {
            None => &requests[requests.partition_point(|request| request.arrival <= self.now)..],
            Some(_) => &requests[arrived.min(requests.len())..],
        };
        self.requests = self.requests[..arrived].iter().chain(future).cloned().collect();
        if !self.shared_prefixes.is_empty() {
            self.shared_prefixes = shared_prefixes(&self.requests).into();
        }
    }

    /// A future of this node: `answer` says how many tokens each request that has arrived is taken to generate, `None` where
    /// that is as it is.
    pub(crate) fn future(&self, answer: impl FnMut(usize) -> Option<u32>, coming: Coming) -> Future {
        let (arrived, will_come) = self.requests.split_at(self.next_arrival);
        let (requests, shared_prefixes) = match coming {
            Coming::WithAnswers(answers) => {
                let coming = will_come.iter().zip(answers);
                let coming = coming.map(|(request, output_tokens)| Request { output_tokens, ..request.clone() });
                (arrived.iter().cloned().chain(coming).collect(), Arc::clone(&self.shared_prefixes))
            }
            Coming::Others(others) => {
                let shared = self.shared_prefixes.iter().copied().take(self.next_arrival);
                let others_share = others.iter().filter(|_| !self.shared_prefixes.is_empty()).map(|_| 0);
                (arrived.iter().cloned().chain(others.iter().cloned()).collect(), shared.chain(others_share).collect())
            }
        };
        Future { requests, shared_prefixes, answers: (0..self.next_arrival).map(answer).collect() }
    }

    /// As [`fork`](Self::fork), into a future of this node as it is now.
    pub(crate) fn fork_into(&self, future: &Future) -> Node {
        let mut fork = self.fork();
        fork.requests = Arc::clone(&future.requests);
        fork.shared_prefixes = Arc::clone(&future.shared_prefixes);
        let ending: &[RequestId] = if self.in_flight.is_some() { &self.plan.finishing } else { &[] };
        fork.scheduler.redraw(ending, |id| future.answers.get(id.index()).copied().flatten());
        fork
    }
}

#[cfg(test)]
mod tests {
    use kvtide_runtime::{Action, Controls, Head, Host};
    use rand::RngExt;

    use super::*;
    use crate::cost::CostModel;
    use crate::deploy::{Deployment, EngineConfig, EngineKind};
    use crate::env::{NodeConfig, NodeStatus};
    use crate::metrics::Collector;
    use crate::sched::{Phase, Scheduler, Slo};
    use crate::seed::{self, Stream};
    use crate::time::Micros;

    fn engines() -> Vec<EngineConfig> {
        let tight = EngineConfig {
            engine: EngineKind::V1,
            block_size: 4,
            num_gpu_blocks: 61,
            max_num_seqs: 12,
            max_num_batched_tokens: 48,
            max_model_len: 160,
            enable_chunked_prefill: true,
            ..EngineConfig::default()
        };
        let mut all = Vec::new();
        for async_scheduling in [false, true] {
            for enable_prefix_caching in [false, true] {
                for num_cpu_blocks in [0, 30] {
                    all.push(EngineConfig { num_cpu_blocks, async_scheduling, enable_prefix_caching, ..tight.clone() });
                }
            }
        }
        all
    }

    fn crowd(stream: &mut Stream, count: usize) -> Vec<Request> {
        let mut arrival = Micros::ZERO;
        let mut next = || {
            arrival += Micros(stream.random_range(0..60_000));
            Request::new(arrival, stream.random_range(1..90), stream.random_range(1..70))
        };
        (0..count).map(|_| next()).collect()
    }

    fn node(engine: &EngineConfig, requests: Vec<Request>, clients: Option<u32>) -> Node {
        let deployment: Deployment = "llama-3-8b@rtx-4090".parse().unwrap();
        let cost = CostModel::new(&deployment, engine.block_size);
        let (engine, slo) = (engine.clone(), Slo::from_millis(500, 60, 500));
        let config = NodeConfig { engine, cost, slo, clients, host: Host::KVTIDE };
        Node::new(&config, requests.into(), Collector::with_gaps()).unwrap()
    }

    fn any_controls(stream: &mut Stream) -> Controls {
        let mut action = Action::V1_DEFAULT;
        for head in Head::ALL {
            action = action.with(head, stream.random_range(0..head.size() as u8)).unwrap_or(action);
        }
        // A whole pool left free now and then, not most of the time.
        let controls = action.controls();
        Controls { watermark: controls.watermark * stream.random_range(0.0..0.5), ..controls }
    }

    /// To the end, recounting everything after each step; the hash and who was served how long.
    fn finish(mut node: Node, mut stream: Stream) -> (u64, Vec<u32>) {
        loop {
            let controls = any_controls(&mut stream);
            let status = node.step(&controls).unwrap();
            if let Scheduler::V1(v1) = node.scheduler() {
                v1.validate().unwrap();
            }
            assert_ne!(status, NodeStatus::Stalled);
            if status == NodeStatus::Drained {
                break;
            }
        }
        node.summary().unwrap();
        let views = (0..node.scheduler().num_requests()).map(|id| node.scheduler().view(RequestId(id as u32)));
        let lengths = views.map(|view| if view.phase == Phase::Finished { view.generated } else { 0 });
        (node.hash(), lengths.collect())
    }

    /// Nodes of every engine, some way into their runs.
    fn each_midway(mut each: impl FnMut(Node, &[Request], &mut Stream)) {
        for (index, engine) in engines().iter().enumerate() {
            for seed in 0..6 {
                let mut stream = seed::stream(seed, "fork", index as u64);
                let requests = crowd(&mut stream, 60);
                let clients = (seed % 3 == 2).then_some(9);
                let mut node = node(engine, requests.clone(), clients);
                for _ in 0..stream.random_range(20..200) {
                    node.step(&any_controls(&mut stream)).unwrap();
                }
                each(node, &requests, &mut stream);
            }
        }
    }

    #[test]
    fn a_copy_goes_on_as_the_node_does_and_leaves_it_alone() {
        each_midway(|node, _, stream| {
            let before = node.hash();
            let copied = finish(node.fork(), stream.clone());
            assert_eq!(node.hash(), before);
            assert_eq!(finish(node.fork().fork(), stream.clone()), copied);
            assert_eq!(finish(node, stream.clone()), copied);
        });
    }

    #[test]
    fn the_future_that_comes_is_no_other_future() {
        each_midway(|node, requests, stream| {
            let coming = requests[node.arrived()..].iter().map(|request| request.output_tokens).collect();
            let answer = |index: usize| Some(requests[index].output_tokens);
            let future = node.future(answer, Coming::WithAnswers(coming));
            assert_eq!(finish(node.fork_into(&future), stream.clone()), finish(node.fork(), stream.clone()));
        });
    }

    #[test]
    fn other_answers_end_where_they_are_said_to() {
        let mut changed = 0;
        each_midway(|node, requests, stream| {
            let arrived = node.arrived();
            let others: Vec<u32> = (0..arrived).map(|_| stream.random_range(1..120)).collect();
            let late = Micros(node.now().0 + 1000);
            let coming = vec![Request::new(late, 7, 9), Request::new(late, 80, 33)];
            let future = node.future(|index| Some(others[index]), Coming::Others(coming));
            let longest = |prompt: u32| node.scheduler().config().max_model_len - prompt;
            let (_, lengths) = finish(node.fork_into(&future), stream.clone());
            assert_eq!(lengths[arrived..], [9, 33]);
            for (index, &length) in lengths[..arrived].iter().enumerate() {
                let view = node.scheduler().view(RequestId(index as u32));
                let (prompt, told) = (requests[index].prompt_tokens, others[index]);
                let is_done = matches!(view.phase, Phase::Finished | Phase::Rejected);
                let asked = told.min(longest(prompt));
                // At most what is on its way comes on top of what is there.
                let is_as_told = length == asked || length <= view.generated + 2;
                assert!(is_done || is_as_told, "{index}: {length} of {told}, {} were there", view.generated);
                changed += u32::from(!is_done && length == asked && length != requests[index].output_tokens);
            }
        });
        assert!(changed > 100, "{changed}");
    }
}
