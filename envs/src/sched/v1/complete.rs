//! What came of a step: tokens are counted, and who finished gives its blocks back.

use kvtide_runtime::Stop;

use super::super::{Outcome, Phase, RequestId, StepPlan};
use super::{StepPlace, V1};
use crate::time::Micros;

impl V1 {
    /// The step `plan` was computed and ended at `now`. With asynchronous scheduling the step after it has been planned
    /// already.
    pub fn complete(&mut self, plan: &StepPlan, now: Micros, outcome: &mut Outcome) {
        outcome.tokens.clear();
        outcome.finished.clear();
        if plan.is_idle() {
            return;
        }
        self.completed += 1;
        self.clock = now;
        for prefill in &plan.prefills {
            if !self.sequences[prefill.id.index()].is_member {
                self.settle(prefill.id, prefill.tokens, prefill.samples);
            }
            if prefill.samples {
                self.told(prefill.id, now, outcome);
            }
        }
        for &id in &plan.joined {
            self.told(id, now, outcome);
        }
        for index in 0..self.departed.len() {
            let id = self.departed[index];
            self.settle(id, 1, true);
            self.sequences[id.index()].last_token = Some(now);
        }
        self.departed.clear();
        for &id in &plan.finishing {
            self.finish(id, outcome);
        }
    }

    /// Counts a loose or waiting request's share of a step: tokens that are no longer on their way, and the one sampled.
    fn settle(&mut self, id: RequestId, tokens: u32, samples: bool) {
        let sequence = &mut self.sequences[id.index()];
        sequence.tokens += u32::from(samples);
        if sequence.is_stale {
            // Preempted since: the token counts, the keys and values are gone.
            sequence.is_stale = false;
            self.waiting.lengthen(sequence.seat, sequence.tokens);
            return;
        }
        sequence.in_flight -= tokens;
        sequence.sampling -= u32::from(samples);
        // A block that the token on its way completed is known only now.
        let known = sequence.computed - sequence.in_flight;
        self.register(id, known);
    }

    fn told(&mut self, id: RequestId, now: Micros, outcome: &mut Outcome) {
        let sequence = &mut self.sequences[id.index()];
        sequence.first_token.get_or_insert(now);
        sequence.last_token = Some(now);
        outcome.tokens.push(id);
    }

    /// The last token is there. The request is running, or waiting if it was preempted with that token on its way.
    fn finish(&mut self, id: RequestId, outcome: &mut Outcome) {
        let sequence = &mut self.sequences[id.index()];
        if sequence.is_member {
            sequence.is_member = false;
            self.cohort.leave(sequence.origin);
        }
        sequence.tokens = sequence.limit;
        sequence.computed = sequence.limit - 1;
        let turn = StepPlace { ticket: sequence.ticket, id };
        let was_running = sequence.phase == Phase::Running;
        self.store_finished(id);
        let sequence = &mut self.sequences[id.index()];
        sequence.phase = Phase::Finished;
        let is_cut_off = sequence.limit >= self.config.max_model_len;
        self.release(id, if is_cut_off { Stop::Length } else { Stop::Unknown }, self.clock);
        let sequence = &mut self.sequences[id.index()];
        sequence.registered = 0;
        sequence.keys = Vec::new();
        // Empty now; its room goes to who comes next.
        sequence.blocks = Vec::new();
        sequence.content = None;
        if !sequence.host_blocks.is_empty() {
            self.host.give_back(&mut sequence.host_blocks);
            sequence.host_tokens = 0;
            self.on_host -= 1;
        }
        if was_running {
            let position = self.position(id);
            self.running.remove(position);
            self.forget_loose(turn);
        } else {
            self.waiting.remove(self.sequences[id.index()].seat);
        }
        outcome.finished.push(id);
    }
}
