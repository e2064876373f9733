//! One decision of the table, shown: the first time that something is refused.

use std::path::Path;

use kvtide_envs::env::{Node, NodeStatus, mask, observe, snapshot};
use kvtide_envs::metrics::Collector;
use kvtide_envs::workload::Draw;
use kvtide_runtime::{Head, Observer, Policy};

use super::{Demo, DemoError};
use crate::export;
use crate::world::World;

impl Demo {
    /// Steers a node into pressure by the default and asks the table in `path` what it would do there.
    ///
    /// # Errors
    /// The table cannot be read, or the unseen traffic not be drawn or served.
    pub fn decide(&self, world: &World, path: &Path) -> Result<String, DemoError> {
        let table = export::load_table(path)?;
        let workload = world.draw(&Draw { window: Some(self.test), load: self.load, seed: 1 })?;
        let mut node = Node::new(&world.node, workload.share(), Collector::default())?;
        let mut observer = Observer::new();
        let default = node.scheduler().default_controls();
        let mut observation = observe(&node, &mut observer);
        while node.collector().preemptions == 0 && node.collector().refused_steps == 0 {
            if node.advance(&default, world.decision_interval)? != NodeStatus::Stepped {
                break;
            }
            observation = observe(&node, &mut observer);
        }
        let controls = table.decide(&observation, mask(&node, table.profile())).controls();
        let shot = snapshot(&node);
        Ok(format!(
            "\nThe first time a request is refused ({:.0} s in; {} of {} blocks free, {} running, {} waiting) the table \
             says:\n  {}, after {} comparisons\n",
            node.now().as_secs_f64(),
            shot.free_gpu_blocks,
            shot.num_gpu_blocks,
            shot.running,
            shot.waiting,
            Head::ALL.map(|head| format!("{} {}", head.name(), controls.get(head))).join(", "),
            table.path(&observation).count()
        ))
    }
}
