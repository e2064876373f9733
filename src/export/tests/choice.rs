//! Which size becomes the table, and what it attains behind its guard.

use std::sync::atomic::AtomicBool;

use kvtide_envs::env::{Arena, EnvError, Episode, Served};
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::FeatureRange;
use kvtide_runtime::{Action, ActionMask, ActionProfile, Feature, Head, Observation, TreeNode};

use super::{Student, TableProvenance, Tree, provenance, student};
use crate::agent::Validator;
use crate::export::{Chosen, choose};

/// Level of the watermark 0.03, which every table here falls back to.
const FALLBACK: u8 = 3;

/// Two worlds, told apart by how much is free; in each, a watermark level is worth so many of a hundred requests. What counts is
/// the last of twenty decisions, so that a guard has had time to lose patience.
struct Worlds(fn(usize, u8) -> u64);

impl Arena for Worlds {
    fn play(&self, seed: u64, decide: &mut dyn FnMut(&Observation, ActionMask) -> Action) -> Result<Episode, EnvError> {
        let world = (seed % 2) as usize;
        let mut observation = Observation::ZERO;
        observation.set(Feature::FreeFraction, [0.9, 0.1][world]);
        let level = (0..20).map(|_| decide(&observation, ActionMask::ALL).get(Head::Watermark)).last().unwrap();
        let served = Served { requests: 100, on_time: (self.0)(world, level), world, ..Served::default() };
        Ok(Episode { env: 0, episode_return: 0.0, decisions: 20, served })
    }

    fn choices(&self) -> [u32; NUM_HEADS] {
        ActionMask::ALL.words()
    }

    fn default_action(&self) -> Action {
        Action::V1_DEFAULT
    }
}

/// Two leaves, level 8 in the first world and 2 in the second, cut to one of level 5; taught on this much that was free.
fn chosen(worth: fn(usize, u8) -> u64, least_free: f32) -> Chosen {
    let leaf = |level| TreeNode::Leaf { choices: [level, 0, 1, 0, 8, 0] };
    let split = TreeNode::Split { feature: Feature::FreeFraction as u8, left: 1, threshold: 0.5 };
    let tree = |nodes: Vec<TreeNode>| Tree { nodes, ..student(0, 1).tree };
    let mut student = Student {
        smaller: vec![(tree(vec![leaf(5)]), student(0, 1).fidelity)],
        profile: ActionProfile::Watermark,
        ..student(0, 1)
    };
    student.tree = tree(vec![split, leaf(2), leaf(8)]);
    student.ranges[Feature::FreeFraction as usize] = FeatureRange { min: least_free, max: 1.0 };
    let training = [("fallback".to_owned(), "0.03".to_owned())].into();
    let provenance = TableProvenance { training, ..provenance() };
    let validator = Validator::new(Box::new(Worlds(worth)), 16, 1);
    let (engine, stop) = (Action::V1_DEFAULT.controls(), AtomicBool::new(false));
    choose(&student, &provenance, engine, &validator, &stop).unwrap().unwrap()
}

#[test]
fn the_size_that_serves_best_is_taken_and_of_equals_the_smaller() {
    let better = chosen(|_, level| if level == 8 || level == 2 { 80 } else { 70 }, 0.0);
    assert_eq!((better.student.tree.leaves(), better.attainment, better.worst_loss), (2, 0.8, 0.0));
    assert_eq!(chosen(|_, _| 70, 0.0).student.tree.leaves(), 1);
}

#[test]
fn what_one_world_gains_is_not_anothers_loss() {
    // The larger attains more on the mean, and 20 points less than the constant in the second world.
    let worth = |_, level| match level {
        8 => 100,
        2 => 40,
        5 => 62,
        _ => 60,
    };
    let chosen = chosen(worth, 0.0);
    assert_eq!((chosen.student.tree.leaves(), chosen.worst_loss), (1, 0.0));
}

#[test]
fn out_of_range_the_fallback_is_judged() {
    // Less than a half was never free: in the second world the guard takes over, and its constant is worth everything.
    let worth = |_, level| if level == FALLBACK || level == 8 { 100 } else { 0 };
    let guarded = chosen(worth, 0.5);
    assert_eq!((guarded.student.tree.leaves(), guarded.attainment), (2, 1.0));
    let trusted = chosen(worth, 0.0);
    assert!(trusted.attainment < 1.0 && trusted.worst_loss == 1.0, "{}", trusted.attainment);
}
