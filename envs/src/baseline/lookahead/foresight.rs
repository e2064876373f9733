//! What a lookahead knows of the future, and what it makes up of the rest.

use std::collections::BTreeMap;
use std::fmt;

use rand::RngExt;

use super::super::answers::Answers;
use super::super::history::History;
use crate::env::{Coming, Future, Node};
use crate::sched::{Phase, RequestId};
use crate::seed::{self, Stream};
use crate::time::Micros;
use crate::trace::Request;

/// What is known of the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foresight {
    /// Of the lengths of answers.
    pub lengths: Lengths,
    /// Who arrives when, with prompts of which length.
    pub arrivals: bool,
}

/// What is known of the lengths of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    /// How long recent ones were.
    Recent,
    /// How long recent ones of the same tenant or class were, after prompts of about the same length.
    Hinted,
    /// How long each will be.
    Known,
}

impl Foresight {
    /// Every rung of the ladder with its name, from nothing to everything.
    pub const RUNGS: [(&'static str, Foresight); 6] = [
        ("nothing", Foresight { lengths: Lengths::Recent, arrivals: false }),
        ("hints", Foresight { lengths: Lengths::Hinted, arrivals: false }),
        ("lengths", Foresight { lengths: Lengths::Known, arrivals: false }),
        ("arrivals", Foresight { lengths: Lengths::Recent, arrivals: true }),
        ("hints+arrivals", Foresight { lengths: Lengths::Hinted, arrivals: true }),
        ("everything", Foresight { lengths: Lengths::Known, arrivals: true }),
    ];

    /// The rung of that name.
    pub fn from_name(name: &str) -> Option<Foresight> {
        Self::RUNGS.iter().find(|rung| rung.0 == name).map(|rung| rung.1)
    }

    /// Whether it knows what nobody can know while requests are served.
    pub fn knows_the_future(self) -> bool {
        self.arrivals || self.lengths == Lengths::Known
    }
}

impl fmt::Display for Foresight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::RUNGS.iter().find(|rung| rung.1 == *self).map_or("", |rung| rung.0);
        f.write_str(name)
    }
}

/// Futures drawn where anything is unknown.
const FUTURES: u64 = 3;
/// Answers of a kind from which on they say more than all of them.
const ENOUGH: u64 = 20;
/// Requests that the clients of a closed loop are taken to send next.
const NEXT_OF_CLIENTS: usize = 512;

/// What has been seen, and the futures made of it.
#[derive(Debug, Clone)]
pub(super) struct Foreseen {
    foresight: Foresight,
    answers: Answers,
    all: History,
    /// By tenant or class, and the octave of the prompt's length.
    kinds: BTreeMap<(u64, u32), History>,
    /// Times it was asked.
    asked: u64,
}

fn kind(request: &Request) -> (u64, u32) {
    let whose = request.tenant.as_deref().or(request.slo_class.as_deref());
    (whose.map_or(0, |whose| seed::derive(0, whose, 0)), request.prompt_tokens.max(1).ilog2())
}

impl Foreseen {
    pub(super) fn new(foresight: Foresight) -> Foreseen {
        let (answers, all) = (Answers::default(), History::new());
        Foreseen { foresight, answers, all, kinds: BTreeMap::new(), asked: 0 }
    }

    /// What may come; `None` for what will.
    pub(super) fn futures(&mut self, node: &Node, horizon: Micros) -> Vec<Option<Future>> {
        self.asked += 1;
        let (all, kinds) = (&mut self.all, &mut self.kinds);
        self.answers.finished(node, |id, answer| {
            all.push(answer.generated);
            let kind = kind(&node.requests()[id.index()]);
            kinds.entry(kind).or_insert_with(History::empty).push(answer.generated);
        });
        if self.foresight == (Foresight { lengths: Lengths::Known, arrivals: true }) {
            return vec![None];
        }
        (0..FUTURES).map(|draw| Some(self.draw(node, horizon, draw))).collect()
    }

    fn draw(&self, node: &Node, horizon: Micros, draw: u64) -> Future {
        let mut stream = seed::stream(self.asked, "lookahead", draw);
        let knows_lengths = self.foresight.lengths == Lengths::Known;
        let coming = if self.foresight.arrivals {
            let next = &node.requests()[node.arrived()..];
            let end = node.now() + horizon;
            let next = match node.clients() {
                Some(_) => &next[..next.len().min(NEXT_OF_CLIENTS)],
                None => &next[..next.partition_point(|request| request.arrival < end)],
            };
            Coming::WithAnswers(next.iter().map(|request| self.answer(node, request, 0, &mut stream)).collect())
        } else {
            let mut others = as_before(node, horizon, draw);
            if !knows_lengths {
                for request in &mut others {
                    request.output_tokens = self.answer(node, request, 0, &mut stream);
                }
            }
            Coming::Others(others)
        };
        let answer = |index: usize| {
            let view = node.scheduler().view(RequestId(index as u32));
            let is_open = !matches!(view.phase, Phase::Finished | Phase::Rejected);
            (is_open && !knows_lengths).then(|| self.answer(node, &node.requests()[index], view.generated, &mut stream))
        };
        node.future(answer, coming)
    }

    /// How long the answer to `request`, of which `generated` tokens are there, is taken to be.
    fn answer(&self, node: &Node, request: &Request, generated: u32, stream: &mut Stream) -> u32 {
        let of_kind = self.kinds.get(&kind(request)).filter(|history| history.seen() >= ENOUGH);
        let history = match self.foresight.lengths {
            Lengths::Recent | Lengths::Known => &self.all,
            Lengths::Hinted => of_kind.unwrap_or(&self.all),
        };
        let longest = node.scheduler().config().max_model_len.saturating_sub(request.prompt_tokens);
        history.length(generated, longest, stream.random())
    }
}

/// Requests that come as others came before: those of the last stretch as long as `horizon`, or of an earlier one for a later
/// `draw`, once more; of clients, those they sent last.
fn as_before(node: &Node, horizon: Micros, draw: u64) -> Vec<Request> {
    let past = &node.requests()[..node.arrived()];
    if node.clients().is_some() {
        let last = &past[past.len().saturating_sub(NEXT_OF_CLIENTS / 2)..];
        // Another draw begins elsewhere in them.
        let skipped = last.len() * draw as usize / FUTURES as usize;
        return last.iter().cycle().skip(skipped).take(NEXT_OF_CLIENTS.min(last.len() * 8)).cloned().collect();
    }
    let now = node.now();
    // As many stretches as there have been, and a shorter one in the beginning.
    let length = horizon.0.min(now.0);
    let back = length * draw.min((now.0 / length.max(1)).saturating_sub(1));
    let (from, to) = (now.0 - back - length, now.0 - back);
    let at = |time: u64| past.partition_point(|request| request.arrival.0 < time);
    let stretch = &past[at(from)..at(to)];
    let repeats = if length == 0 { 0 } else { horizon.0.div_ceil(length) };
    let again = |times: u64| stretch.iter().map(move |request| (request, request.arrival.0 - from + times * length));
    let all = (0..repeats).flat_map(again);
    all.map(|(request, after)| Request { arrival: Micros(now.0 + after), ..request.clone() }).collect()
}
