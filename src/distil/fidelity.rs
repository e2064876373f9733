//! How much of its teacher a student is.

use kvtide_runtime::{ActionProfile, Head, Policy};
use serde::Serialize;

use super::dataset::Sample;

/// Agreement of one head, each from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeadFidelity {
    /// The head.
    pub head: &'static str,
    /// Share of decisions in which student and teacher choose the same.
    pub by_visits: f64,
    /// The same with each decision weighted by the teacher's regret (see [`super::dataset`]): what is left to disagree
    /// about may not matter. 1 if the teacher never minds.
    pub by_regret: f64,
}

/// Agreement of student and teacher on decisions the student came past and was not trained on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fidelity {
    /// The heads of the profile, in order.
    pub heads: Vec<HeadFidelity>,
    /// Share of decisions in which every head agrees.
    pub joint: f64,
    /// Number of decisions.
    pub samples: usize,
}

impl Fidelity {
    /// Compares what `student` does with what the teacher would have done. Without samples everything agrees.
    pub fn of(student: &dyn Policy, samples: &[Sample], profile: ActionProfile) -> Fidelity {
        let agreements: Vec<[bool; Head::ALL.len()]> = samples
            .iter()
            .map(|sample| {
                let action = student.decide(&sample.visit.observation, sample.visit.mask);
                Head::ALL.map(|head| action.get(head) == sample.action.get(head))
            })
            .collect();
        let heads = profile.heads().iter().map(|&head| {
            let pairs = || samples.iter().zip(&agreements);
            let regret = |(sample, _): &(&Sample, _)| u64::from(sample.regrets[head as usize]);
            let agreed = |(_, agreement): &(_, &[bool; Head::ALL.len()])| agreement[head as usize];
            HeadFidelity {
                head: head.name(),
                by_visits: share(pairs().filter(agreed).count() as u64, samples.len() as u64),
                by_regret: share(
                    pairs().filter(agreed).map(|pair| regret(&pair)).sum(),
                    pairs().map(|pair| regret(&pair)).sum(),
                ),
            }
        });
        let heads = heads.collect();
        let joint = agreements.iter().filter(|agreement| !agreement.contains(&false)).count();
        Fidelity { heads, joint: share(joint as u64, samples.len() as u64), samples: samples.len() }
    }
}

/// `part / whole`; 1 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use kvtide_runtime::action::NUM_HEADS;
    use kvtide_runtime::{Action, ActionMask, Fixed, Observation};

    use super::*;
    use crate::distil::dataset::Visit;

    fn sample(choices: [u8; NUM_HEADS], regrets: [u32; NUM_HEADS], mask: ActionMask) -> Sample {
        let visit = Visit { observation: Observation::ZERO, mask };
        Sample { visit, action: Action::new(choices).unwrap(), regrets }
    }

    #[test]
    fn visits_count_once_and_regrets_by_weight() {
        let samples = [
            sample([3, 0, 1, 0, 8, 0], [100, 10, 0, 0, 0, 0], ActionMask::ALL),
            sample([3, 1, 1, 0, 8, 0], [300, 20, 0, 0, 0, 0], ActionMask::ALL),
            sample([4, 0, 1, 0, 8, 0], [100, 30, 0, 0, 0, 0], ActionMask::ALL),
            // Not what the student says, but all it can do here.
            sample([5, 2, 1, 0, 8, 0], [0, 0, 0, 0, 0, 0], ActionMask::ALL.pin(Head::Watermark, 5)),
        ];
        let student = Fixed(Action::new([3, 0, 1, 0, 8, 0]).unwrap());
        let fidelity = Fidelity::of(&student, &samples, ActionProfile::Core);
        let expected = [("watermark", 0.75, 0.8), ("victim", 0.5, 40.0 / 60.0), ("preemption", 1.0, 1.0)];
        for (head, (name, by_visits, by_regret)) in fidelity.heads.iter().zip(expected) {
            assert_eq!((head.head, head.by_visits, head.by_regret), (name, by_visits, by_regret));
        }
        assert_eq!((fidelity.heads.len(), fidelity.joint, fidelity.samples), (3, 0.25, 4));
    }

    #[test]
    fn nothing_to_disagree_about_is_agreement() {
        let fidelity = Fidelity::of(&Fixed(Action::ENGINE_DEFAULT), &[], ActionProfile::Watermark);
        assert_eq!((fidelity.joint, fidelity.heads[0].by_visits, fidelity.heads[0].by_regret), (1.0, 1.0, 1.0));
    }
}
