//! What a perfect operator could do with constants, knowing the traffic beforehand.

use kvtide_envs::metrics::Summary;
use kvtide_runtime::action::WATERMARK_LEVELS;
use kvtide_runtime::{ActionProfile, Admission, Controls, Head, Preemption, Victim};

/// Constant controls over the heads of `profile`, the others as in the engine's `default`, that run first: every one that
/// differs in watermark or admission order. Victim and preemption mode are the default's.
pub(super) fn coarse(profile: ActionProfile, default: Controls) -> Vec<Controls> {
    let admissions = choices(profile, Head::Admission, Admission::ALL, default.admission);
    let mut candidates = Vec::new();
    for &watermark in &WATERMARK_LEVELS {
        for &admission in &admissions {
            candidates.push(Controls { watermark, admission, ..default });
        }
    }
    candidates
}

/// What else `profile` could do instead of `coarse`, which preempted somebody. Without a preemption neither victim nor
/// mode is ever asked for, and every variant would be the same run.
///
/// Without a host pool a victim can only be recomputed, and every mode would be the same run.
pub(super) fn refine(profile: ActionProfile, coarse: &Controls, host_pool: bool) -> Vec<Controls> {
    let victims = choices(profile, Head::Victim, Victim::ALL, coarse.victim);
    let all: &[Preemption] = if host_pool { Preemption::ALL } else { &[Preemption::Recompute] };
    let modes = choices(profile, Head::Preemption, all, coarse.preemption);
    let modes = &modes;
    let pairs = victims.iter().flat_map(|&victim| modes.iter().map(move |&preemption| (victim, preemption)));
    pairs
        .map(|(victim, preemption)| Controls { victim, preemption, ..*coarse })
        .filter(|controls| controls != coarse)
        .collect()
}

fn choices<T: Copy>(profile: ActionProfile, head: Head, all: &[T], default: T) -> Vec<T> {
    if profile.heads().contains(&head) { all.to_vec() } else { vec![default] }
}

/// The candidate with the highest mean attainment over seeds; of equals the one with the most output tokens/s, then the
/// first.
pub(super) fn best(candidates: impl Iterator<Item = (Controls, Vec<Summary>)>) -> Option<(Controls, Vec<Summary>)> {
    let score = |summaries: &[Summary]| {
        let mean = |value: fn(&Summary) -> f64| summaries.iter().map(value).sum::<f64>() / summaries.len() as f64;
        (mean(|summary| summary.slo_attainment), mean(|summary| summary.output_tok_s))
    };
    let mut best: Option<(Controls, Vec<Summary>, (f64, f64))> = None;
    for (controls, summaries) in candidates {
        let found = score(&summaries);
        if best.as_ref().is_none_or(|(_, _, so_far)| found > *so_far) {
            best = Some((controls, summaries, found));
        }
    }
    best.map(|(controls, summaries, _)| (controls, summaries))
}

#[cfg(test)]
mod tests {
    use kvtide_runtime::Action;

    use super::*;

    #[test]
    fn candidates_cover_the_profile_once() {
        let count = |profile, host_pool| {
            let coarse = coarse(profile, Action::V1_DEFAULT.controls());
            assert!(coarse.contains(&Action::V1_DEFAULT.controls()));
            coarse.len() + coarse.iter().map(|one| refine(profile, one, host_pool).len()).sum::<usize>()
        };
        assert_eq!(count(ActionProfile::Watermark, true), 12);
        assert_eq!(count(ActionProfile::Core, true), 12 * 5 * 3);
        assert_eq!(count(ActionProfile::Full, true), 12 * 5 * 3 * 3);
        assert_eq!(count(ActionProfile::Full, false), 12 * 5 * 3);
    }
}
