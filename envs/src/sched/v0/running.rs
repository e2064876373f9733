//! Running requests decode, or go on with their prompt; blocks are found for them by preempting others.

use kvtide_rules::victim;

use super::super::cohort::StepPlace;
use super::super::{Phase, Prefill, PrefillSource, RequestId, Stage, StepPlan};
use super::{EngineError, StepContext, V0};
use crate::tier::Tier;

impl V0 {
    /// Serves running from its head. Victims are taken from those behind the request being served; one already served
    /// in this step is never a victim, and a request is its own victim only when nobody is left.
    ///
    /// Victims are taken out of running, which otherwise stays as it was.
    pub(super) fn run(&mut self, step: &mut StepContext<'_>, plan: &mut StepPlan) -> Result<(), EngineError> {
        step.is_short = self.config.enable_chunked_prefill && !self.budget_reaches();
        if step.is_short {
            self.dissolve(plan);
        }
        let mut turns = std::mem::take(&mut self.scratch.turns);
        self.find_turns(&mut turns);
        let result = self.serve(&turns, step, plan);
        turns.clear();
        self.scratch.turns = turns;
        let requests = &self.requests;
        self.loose.retain(|id| {
            let request = &requests[id.index()];
            request.phase == Phase::Running && request.joined.is_none()
        });
        step.tokens += self.cohort.len();
        if self.config.enable_chunked_prefill {
            step.slots = self.cohort.len() + plan.prefills.len() as u32;
        }
        result
    }

    /// Those who must be looked at, in running order: members of the cohort to which something happens, and the loose.
    fn find_turns(&mut self, turns: &mut Vec<StepPlace>) {
        let requests = &self.requests;
        let is_due = |id: &RequestId| {
            let request = &requests[id.index()];
            request.joined.is_some() && request.next_event == self.planned
        };
        let turn = |id: RequestId| StepPlace { ticket: requests[id.index()].ticket, id };
        turns.extend(self.cohort.due(self.planned).filter(is_due).map(turn));
        turns.extend(self.loose.iter().copied().map(turn));
        turns.sort_unstable();
        // Who left the cohort and came back between two events has two entries for the second.
        turns.dedup();
    }

    fn serve(
        &mut self,
        turns: &[StepPlace],
        step: &mut StepContext<'_>,
        plan: &mut StepPlan,
    ) -> Result<(), EngineError> {
        // Position of the next in turn. It matters while no block is free, and is kept only then.
        let mut head = 0;
        for &StepPlace { id, .. } in turns {
            if !self.is_running(id) {
                continue;
            }
            if self.is_spent(step) && self.requests[id.index()].joined.is_none() {
                step.left_over = self.running.len() - self.position(id);
                return Ok(());
            }
            if self.pools[Tier::Gpu].num_free() == 0 {
                // Perhaps for a member before this request, to which nothing else happens; perhaps at its expense.
                self.make_room(head, step, plan)?;
                if !self.is_running(id) {
                    continue;
                }
            }
            self.take_turn(id, step, plan);
            if self.pools[Tier::Gpu].num_free() == 0 {
                head = self.position(id) + 1;
            }
        }
        if self.pools[Tier::Gpu].num_free() == 0 && head < self.running.len() {
            self.make_room(head, step, plan)?;
        }
        Ok(())
    }

    fn take_turn(&mut self, id: RequestId, step: &mut StepContext<'_>, plan: &mut StepPlan) {
        let request = &self.requests[id.index()];
        if request.stage == Stage::Decode {
            self.decode(id, plan);
            return;
        }
        let (context, rest) = (request.computed, request.len() - request.computed);
        let tokens = rest.min(self.budget_left(step));
        plan.prefills.push(Prefill { id, tokens, context, source: PrefillSource::Continued, samples: tokens == rest });
        step.tokens += tokens;
    }

    /// Preempts until the request at `head` of running finds the blocks it touches, or is gone itself.
    ///
    /// A decode touches one block whether or not it needs a new one, so it is refused as soon as nothing is free.
    fn make_room(&mut self, head: usize, step: &StepContext<'_>, plan: &mut StepPlan) -> Result<(), EngineError> {
        loop {
            let id = self.running[head];
            if self.touched(&self.requests[id.index()]) <= self.pools[Tier::Gpu].num_free() {
                return Ok(());
            }
            if head + 1 < self.running.len() {
                self.preempt(self.choose_victim(head + 1, step), step, plan)?;
                continue;
            }
            // Repair: whoever runs alone is asked for what it needs. vLLM would preempt it for each token.
            let is_alone = head == 0 && self.is_safe();
            if is_alone && self.missing(id) <= self.pools[Tier::Gpu].num_free() {
                return Ok(());
            }
            return self.preempt(head, step, plan);
        }
    }

    /// Position of the victim among those from position `first` of running on, of whom there are some.
    fn choose_victim(&self, first: usize, step: &StepContext<'_>) -> usize {
        let newest_first = (first..self.running.len()).rev();
        let chosen = victim::choose(step.controls.victim, newest_first, |&at| self.view(self.running[at]).running());
        chosen.unwrap_or(first)
    }

    fn is_running(&self, id: RequestId) -> bool {
        self.requests[id.index()].phase == Phase::Running
    }

    /// Tokens the step has left, those that members of the cohort will take counted already.
    fn budget_left(&self, step: &StepContext<'_>) -> u32 {
        self.config.max_num_batched_tokens.saturating_sub(step.tokens + self.cohort.len())
    }

    /// Whether the step has no tokens left for those outside the cohort. Without chunks nothing ties them to a budget.
    fn is_spent(&self, step: &StepContext<'_>) -> bool {
        self.config.enable_chunked_prefill && self.budget_left(step) == 0
    }
}
