//! `ppas`.

use kvtide_runtime::Controls;

use crate::env::{Controller, Node};
use crate::sched::{PromptLimit, PromptPressure};

/// `ppas:N,CAP`: the engine as it comes, its prompts limited while they press upon decodes. The rule is the scheduler's own, asked
/// at the start of every step, when whoever arrived during the last one is there to be counted.
impl Controller for PromptPressure {
    fn control(&mut self, node: &Node) -> Controls {
        node.scheduler().default_controls()
    }

    fn prompt_limit(&self) -> PromptLimit {
        PromptLimit::Pressure(*self)
    }
}
