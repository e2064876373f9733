//! Running requests are given the tokens they lack, first admitted first.

use super::super::{Phase, Prefill, PrefillSource, RequestId, StepPlan};
use super::{StepContext, StepPlace, V1};
use crate::kv::blocks_for;

impl V1 {
    /// Gives every running request its turn, in running order: the loose ones, and those members of the cohort to which
    /// something happens. The other members need nothing.
    pub(super) fn run(&mut self, step: &mut StepContext<'_>, plan: &mut StepPlan) {
        let mut turns = std::mem::take(&mut self.turns);
        turns.extend(self.cohort.due(step.number));
        step.budget = self.tokens_of_step(&turns, step);
        debug_assert!(self.budget_reaches(step), "who runs was admitted within the budget");
        turns.extend_from_slice(&self.loose);
        turns.sort_unstable();
        for &turn in &turns {
            if !self.take_turn(turn, step, plan) {
                break;
            }
        }
        turns.clear();
        self.turns = turns;
    }

    /// Whether the budget reaches for every decode, and whatever is before it in running order. That is why the cohort decodes
    /// as one. The engine's own always does, and for every other running request but perhaps the last, which may be cut
    /// short: nobody is admitted in a step that has no tokens left, whoever is admitted asks for no more in a later step than
    /// in its first, and a chunk that was cut short took all that was left, so that nobody came behind it. A policy's is made
    /// to reach, see [`tokens_of_step`](Self::tokens_of_step). A limit of prompt tokens changes nothing of that: it leaves
    /// decodes alone.
    fn budget_reaches(&self, step: &StepContext<'_>) -> bool {
        self.needed(step) <= step.budget
    }

    /// Tokens a loose request would be given from an endless budget.
    pub(super) fn wanted(&self, id: RequestId, step: &StepContext<'_>) -> u32 {
        let sequence = &self.sequences[id.index()];
        let is_last_on_its_way = sequence.sampling > 0 && sequence.tokens + sequence.sampling >= sequence.limit;
        if is_last_on_its_way {
            return 0;
        }
        let room = self.config.max_model_len.saturating_sub(sequence.computed + 1);
        sequence.missing().min(step.longest_chunk).min(room)
    }

    /// False if the loop ends here, because the request was its own victim and so the last.
    fn take_turn(&mut self, turn: StepPlace, step: &mut StepContext<'_>, plan: &mut StepPlan) -> bool {
        let sequence = &self.sequences[turn.id.index()];
        if sequence.phase != Phase::Running || sequence.ticket != turn.ticket {
            return true;
        }
        if !sequence.is_member {
            return self.loose_turn(turn, step, plan);
        }
        if sequence.next_event != step.number {
            return true;
        }
        self.member_turn(turn, step, plan)
    }

    fn loose_turn(&mut self, turn: StepPlace, step: &mut StepContext<'_>, plan: &mut StepPlan) -> bool {
        let id = turn.id;
        let sequence = &self.sequences[id.index()];
        let most = if sequence.is_within_prompt() { step.prompt_tokens_left } else { u32::MAX };
        let tokens = self.wanted(id, step).min(self.budget_left(step)).min(most);
        if tokens == 0 {
            return true;
        }
        let (context, missing) = (sequence.computed, sequence.missing());
        let end = (context + tokens).min(self.config.max_model_len);
        let need = blocks_for(end, self.config.block_size).saturating_sub(sequence.blocks.len() as u32);
        if !self.grow(id, need, step, plan) {
            return false;
        }
        let known = self.sequences[id.index()].tokens;
        self.register(id, known.min(context + tokens));
        let has_begun = self.sequences[id.index()].has_begun();
        if missing == 1 && has_begun {
            self.join(turn, step, plan);
        } else {
            self.compute(id, tokens, PrefillSource::Continued, step, plan);
        }
        true
    }

    /// Plans a chunk of a prompt.
    pub(super) fn compute(
        &mut self,
        id: RequestId,
        tokens: u32,
        source: PrefillSource,
        step: &mut StepContext<'_>,
        plan: &mut StepPlan,
    ) {
        let sequence = &mut self.sequences[id.index()];
        let context = sequence.computed;
        let samples = tokens == sequence.missing();
        if source == PrefillSource::Waiting || sequence.is_within_prompt() {
            step.prompt_tokens_left -= tokens;
        }
        sequence.computed += tokens;
        sequence.in_flight += tokens;
        sequence.sampling += u32::from(samples);
        plan.prefills.push(Prefill { id, tokens, context, source, samples });
        if samples && sequence.tokens + sequence.sampling >= sequence.limit {
            plan.finishing.push(id);
        }
        step.loose_tokens += tokens;
    }

    /// Takes `need` blocks for a running request, preempting others for them. False if it had to go itself.
    pub(super) fn grow(&mut self, id: RequestId, need: u32, step: &StepContext<'_>, plan: &mut StepPlan) -> bool {
        if need > self.pool.num_free() && !self.make_room(id, need, step, plan) {
            return false;
        }
        self.pool.take(need, &mut self.sequences[id.index()].blocks);
        self.write_back(plan);
        true
    }

    /// Gives every block that was registered without a key its key: from now on the request itself will ask for it.
    pub(super) fn publish(&mut self, id: RequestId) {
        let sequence = &mut self.sequences[id.index()];
        let Some(content) = &sequence.content else { return };
        let keyless = std::mem::replace(&mut sequence.keyless_from, u32::MAX);
        content.extend_keys(&mut sequence.keys, sequence.registered, self.config.block_size);
        for index in keyless..sequence.registered {
            let parent = index.checked_sub(1).map(|before| sequence.blocks[before as usize]);
            self.pool.publish(sequence.blocks[index as usize], sequence.keys[index as usize], parent);
        }
    }

    /// Enters the full blocks among the first `tokens` tokens into the prefix cache.
    pub(super) fn register(&mut self, id: RequestId, tokens: u32) {
        let block_size = self.config.block_size;
        let full = tokens / block_size;
        let follows_paths = self.follows_paths();
        let sequence = &mut self.sequences[id.index()];
        let before = sequence.registered;
        let Some(content) = sequence.content.as_ref().filter(|_| before < full) else { return };
        let keyed = full.min(sequence.keyless_from);
        if before < keyed {
            content.extend_keys(&mut sequence.keys, keyed, block_size);
            let (before, keyed) = (before as usize, keyed as usize);
            self.pool.register_path(&sequence.blocks, before..keyed, sequence.keys[before..keyed].iter().copied());
        }
        let keyless = before.max(keyed)..full;
        if !keyless.is_empty() {
            self.pool.register_keyless(&sequence.blocks[keyless.start as usize..full as usize]);
        }
        if follows_paths {
            for index in keyless {
                let parent = index.checked_sub(1).map(|before| sequence.blocks[before as usize]);
                self.pool.continues(sequence.blocks[index as usize], parent);
            }
        }
        sequence.registered = full;
        self.note_produced(id, before, full, false);
    }
}
