//! What a table must not be if it is to be written, and what is said of what it loses.

use kvtide_runtime::{GuardConfig, Host, Table};

use super::TableProvenance;
use crate::bootstrap::Interval;
use crate::distil::{Fidelity, HeadFidelity, Loss};

/// How bad a table may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    /// Most percentage points of attainment it may lose against its teacher.
    pub max_loss: f64,
    /// Least share of decisions, weighted by how much the teacher minds, in which every head must agree with it.
    pub min_fidelity: f64,
}

impl Gate {
    /// Why the table is not good enough, if it is not.
    pub fn refusal(&self, fidelity: &Fidelity, loss: &Loss) -> Option<String> {
        if loss.points.mean > self.max_loss {
            return Some(format!("{:.2} points lost are more than --max-loss {}", loss.points.mean, self.max_loss));
        }
        let worst = fidelity.heads.iter().min_by(|a, b| a.by_regret.total_cmp(&b.by_regret))?;
        (worst.by_regret < self.min_fidelity).then(|| {
            let HeadFidelity { head, by_regret, .. } = worst;
            format!("head {head} agrees in {by_regret:.4} by regret, less than --min-fidelity {}", self.min_fidelity)
        })
    }
}

/// Why `host` would refuse the table in `bytes`, if it would.
pub fn unfit(bytes: &[u8], host: &Host, has_prefix_cache: bool) -> Option<String> {
    let table = Table::parse(bytes).expect("what was encoded for this build can be read by it");
    host.check(&table, has_prefix_cache, GuardConfig::default().range_tolerance).err().map(|unfit| unfit.to_string())
}

/// `attains 95.2 % where its teacher attains 95.3 %, on 64 unseen episodes: 0.10 points lost [-0.02, 0.21]`.
pub fn loss_text(loss: &Loss, traffic: &str) -> String {
    format!(
        "attains {:.1} % where its teacher attains {:.1} %, on {} {traffic} episodes: {} points lost",
        loss.student * 100.0,
        loss.teacher * 100.0,
        loss.episodes,
        interval_text(&loss.points)
    )
}

/// `0.10 [-0.02, 0.21]`.
pub fn interval_text(points: &Interval) -> String {
    match (points.low, points.high) {
        (Some(low), Some(high)) => format!("{:.2} [{low:.2}, {high:.2}]", points.mean),
        _ => format!("{:.2}", points.mean),
    }
}

impl TableProvenance {
    /// The same with the host the table is for, and with what it lost on which traffic, among its metadata.
    #[must_use]
    pub fn judged(mut self, host: &Host, loss: &Loss, traffic: &str) -> TableProvenance {
        let said = [
            ("host", host.name.to_owned()),
            ("loss.episodes", loss.episodes.to_string()),
            ("loss.traffic", traffic.to_owned()),
            ("loss.points", interval_text(&loss.points)),
        ];
        self.training.extend(said.map(|(key, value)| (key.to_owned(), value)));
        self
    }
}
