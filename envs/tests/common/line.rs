//! One step as one line of text.

use std::fmt::{self, Display, Write};

use kvtide_envs::sched::{AllocStatus, Outcome, PreemptedAs, PrefillSource, Refusal, RequestId, StepPlan, V0};
use kvtide_envs::tier::{Route, Tier};

/// Requests decoding one token each, in scheduled order.
pub fn decodes(plan: &StepPlan, scheduler: &V0) -> Vec<RequestId> {
    scheduler.scheduled(plan).split_off(plan.prefills.len()).into_iter().map(|scheduled| scheduled.id).collect()
}

/// What a step decided and the state after it was scheduled. Filled from our scheduler or from a reference.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Line {
    /// `(id, tokens, source)`, source W, C or S as in golden logs.
    pub prefills: Vec<(u32, u32, char)>,
    pub decodes: Vec<u32>,
    /// `(id, R or S)`.
    pub preempted: Vec<(u32, char)>,
    /// `(id, blocks)`.
    pub swapped_out: Vec<(u32, u32)>,
    pub swapped_in: Vec<(u32, u32)>,
    pub rejected: Vec<u32>,
    /// `(id, need, free, status)`.
    pub admissions_refused: Vec<(u32, u32, u32, &'static str)>,
    pub swap_ins_refused: Vec<(u32, u32, u32, &'static str)>,
    /// Waiting, running, swapped, head first.
    pub queues: [Vec<u32>; 3],
    /// On the GPU and on the host.
    pub free: [u32; 2],
    pub finished: Vec<u32>,
}

impl Line {
    /// After `schedule`; what finishes is added later.
    pub fn of(plan: &StepPlan, scheduler: &V0) -> Line {
        let ids = |list: &[RequestId]| list.iter().map(|id| id.0).collect::<Vec<u32>>();
        let pairs = |list: &[(RequestId, u32)]| list.iter().map(|&(id, blocks)| (id.0, blocks)).collect();
        let source = |source| match source {
            PrefillSource::Waiting => 'W',
            PrefillSource::Continued => 'C',
            PrefillSource::Swapped => 'S',
        };
        let refused = |list: &[Refusal]| {
            let status = |refusal: &Refusal| if refusal.status == AllocStatus::Later { "later" } else { "never" };
            list.iter().map(|refusal| (refusal.id.0, refusal.need, refusal.free, status(refusal))).collect()
        };
        let how = |how| if how == PreemptedAs::Swap { 'S' } else { 'R' };
        Line {
            prefills: plan.prefills.iter().map(|chunk| (chunk.id.0, chunk.tokens, source(chunk.source))).collect(),
            decodes: decodes(plan, scheduler).iter().map(|id| id.0).collect(),
            preempted: plan.preempted.iter().map(|victim| (victim.id.0, how(victim.how))).collect(),
            swapped_out: pairs(&plan.moved[Route::GpuToHost]),
            swapped_in: pairs(&plan.moved[Route::HostToGpu]),
            rejected: ids(&plan.rejected),
            admissions_refused: refused(&plan.admissions_refused),
            swap_ins_refused: refused(&plan.swap_ins_refused),
            queues: [scheduler.waiting().collect(), scheduler.running().to_vec(), scheduler.swapped().collect()]
                .map(|queue: Vec<RequestId>| ids(&queue)),
            free: [scheduler.pool(Tier::Gpu).num_free(), scheduler.pool(Tier::Host).num_free()],
            finished: Vec::new(),
        }
    }

    /// Adds what the step came to.
    pub fn finish(mut self, outcome: &Outcome) -> Line {
        self.finished = outcome.finished.iter().map(|id| id.0).collect();
        self
    }

    pub fn is_idle(&self) -> bool {
        let decided = [self.decodes.len(), self.prefills.len(), self.preempted.len(), self.swapped_in.len()];
        decided.iter().sum::<usize>() + self.rejected.len() == 0
    }
}

impl Display for Line {
    /// `prefill 0:8W; decode 1 2; … | w 3 r 0 1 s - | free 5+2 | done 1`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut events = Vec::new();
        let mut event = |name: &str, list: String| {
            if !list.is_empty() {
                events.push(format!("{name} {list}"));
            }
        };
        let refused = |list: &[(u32, u32, u32, &str)]| {
            join(list.iter().map(|(id, need, free, status)| format!("{id} needs {need} of {free}: {status}")))
        };
        event("admit?", refused(&self.admissions_refused));
        event("swap-in?", refused(&self.swap_ins_refused));
        event("drop", join(&self.rejected));
        event("preempt", join(self.preempted.iter().map(|(id, how)| format!("{id}{how}"))));
        event("out", join(self.swapped_out.iter().map(|(id, blocks)| format!("{id}:{blocks}"))));
        event("in", join(self.swapped_in.iter().map(|(id, blocks)| format!("{id}:{blocks}"))));
        event("prefill", join(self.prefills.iter().map(|(id, tokens, source)| format!("{id}:{tokens}{source}"))));
        event("decode", join(&self.decodes));
        let queue = |ids: &[u32]| if ids.is_empty() { "-".to_owned() } else { join(ids) };
        let [waiting, running, swapped] = self.queues.each_ref().map(|ids| queue(ids));
        let [gpu, cpu] = self.free;
        let events = if events.is_empty() { "idle".to_owned() } else { events.join("; ") };
        write!(f, "{events} | w {waiting} r {running} s {swapped} | free {gpu}+{cpu}")?;
        if self.finished.is_empty() { Ok(()) } else { write!(f, " | done {}", join(&self.finished)) }
    }
}

fn join<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().fold(String::new(), |mut text, item| {
        let space = if text.is_empty() { "" } else { " " };
        write!(text, "{space}{item}").expect("writing to a string works");
        text
    })
}
