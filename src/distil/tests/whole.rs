//! The whole way: episodes, students that drive, fidelity.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kvtide_envs::deploy::DeadEnds;
use kvtide_envs::env::{EnvError, ServingArena};
use kvtide_runtime::action::NUM_CHOICES;
use kvtide_runtime::{Action, ActionMask, ActionProfile, FEATURES, Head, Observation, Policy};
use rayon::ThreadPoolBuilder;

use super::{Rules, cautious, crowded, quick};
use crate::distil::dagger::{self, SamplingPlan};
use crate::distil::dataset::{self, Visit};
use crate::distil::{DaggerReport, DistilConfig, DistilError, Fidelity, Student, Teacher, Tree, distil};

fn distilled(teacher: &dyn Teacher, profile: ActionProfile, config: &DistilConfig) -> (Student, Vec<DaggerReport>) {
    let mut seen = Vec::new();
    let stop = AtomicBool::new(false);
    let student = distil(teacher, &crowded(profile), config, &mut |progress| seen.push(progress), &stop).unwrap();
    (student, seen)
}

#[test]
fn rules_are_recovered() {
    let (student, progress) = distilled(&Rules(cautious), ActionProfile::Full, &quick());
    let fidelity = &student.fidelity;
    assert!(fidelity.joint >= 0.99, "{fidelity:?}");
    assert!(fidelity.heads.iter().all(|head| head.by_visits >= 0.99 && head.by_regret >= 0.99), "{fidelity:?}");
    assert_eq!((fidelity.heads.len(), fidelity.samples, student.samples), (5, 2700, 9000));
    assert_eq!(student.profile, ActionProfile::Full);
    // What is cut off is not forgiven: a single leaf knows no rule, and says so.
    let (tree, of_leaf) = student.sizes().last().unwrap();
    assert!(tree.leaves() == 1 && of_leaf.joint < 0.9, "{of_leaf:?}");
    assert_eq!(&student.with_size((tree, of_leaf)).fidelity, of_leaf);
    // Every rule was in play, or the numbers above say nothing.
    for (head, least) in [(Head::Watermark, 3), (Head::Preemption, 2), (Head::Admission, 2)] {
        let mut said: Vec<u8> = student
            .tree
            .nodes
            .iter()
            .filter_map(|node| match node {
                kvtide_runtime::TreeNode::Leaf { choices } => Some(choices[head as usize]),
                kvtide_runtime::TreeNode::Split { .. } => None,
            })
            .collect();
        said.sort_unstable();
        said.dedup();
        assert!(said.len() >= least, "{head:?} {said:?}");
    }
    for (range, spec) in student.ranges.iter().zip(&FEATURES) {
        assert!(spec.min <= range.min && range.min <= range.max && range.max <= spec.max, "{}", spec.name);
    }
    assert_eq!(
        progress.iter().map(|p| (p.iteration, p.iterations, p.samples)).collect::<Vec<_>>(),
        [(1, 3, 3000), (2, 3, 6000), (3, 3, 9000)]
    );
    assert_eq!(progress[2].leaves, student.tree.leaves());
    assert!(progress[0].driver.is_none() && progress[1].driver.as_ref().is_some_and(|driver| driver.samples == 3000));
}

#[test]
fn heads_outside_the_profile_stay_at_the_default() {
    let (student, _) = distilled(&Rules(cautious), ActionProfile::Watermark, &quick());
    assert!(student.fidelity.joint >= 0.99, "{:?}", student.fidelity);
    assert_eq!(student.fidelity.heads.iter().map(|head| head.head).collect::<Vec<_>>(), ["watermark"]);
    for waiting in 0..20 {
        let mut observation = Observation::ZERO;
        observation.values.fill(waiting as f32 * 0.05);
        let action = student.decide(&observation, ActionMask::ALL);
        assert_eq!(action.indices()[1..], Action::ENGINE_DEFAULT.indices()[1..]);
    }
}

#[test]
fn threads_do_not_matter_and_the_seed_does() {
    let config = DistilConfig { max_leaves: 64, samples_per_iteration: 1500, ..quick() };
    let at = |threads: usize, config: &DistilConfig| {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| distilled(&Rules(cautious), ActionProfile::Full, config))
    };
    let one = at(1, &config);
    assert_eq!(at(2, &config), one);
    assert_eq!(at(8, &config), one);
    assert_ne!(at(2, &DistilConfig { seed: 8, ..config }).0, one.0);
}

/// Remembers what it is asked.
#[derive(Default)]
struct Remembering {
    decisions: AtomicU64,
    visits: Mutex<Vec<Visit>>,
}

impl Policy for Remembering {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        Rules(cautious).decide(observation, mask)
    }
}

impl Teacher for Remembering {
    fn logits(&self, observation: &Observation, mask: ActionMask) -> [f32; NUM_CHOICES] {
        self.visits.lock().unwrap().push(Visit { observation: *observation, mask });
        Rules(cautious).logits(observation, mask)
    }
}

/// What a teacher is asked by one thread: its decisions at the wheel, the decisions it corrects in order, the student.
fn remembered(dagger_iterations: u32) -> (u64, Vec<Visit>, Student) {
    let teacher = Remembering::default();
    let config = DistilConfig { dagger_iterations, ..quick() };
    let one_thread = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let (student, _) = one_thread.install(|| distilled(&teacher, ActionProfile::Full, &config));
    let visits = teacher.visits.into_inner().unwrap();
    // Correcting takes one decision for each opinion; the rest is driving.
    (teacher.decisions.into_inner() - visits.len() as u64, visits, student)
}

#[test]
fn the_teacher_drives_once_and_the_student_ever_after() {
    let (driven, ..) = remembered(0);
    assert!(driven >= 3000);
    assert_eq!(remembered(2).0, driven);
}

#[test]
fn the_student_is_grown_from_every_iteration_and_measured_on_none() {
    let (_, visits, student) = remembered(2);
    let samples = dagger::label(&Rules(cautious), &visits).unwrap();
    let (training, held_out) = samples.split_at(9000);
    assert_eq!(held_out.len(), 2700);
    assert_eq!(student.tree, Tree::grow(training, &quick()));
    assert_eq!(student.ranges, dataset::ranges(training.iter().map(|sample| &sample.visit.observation)));
    assert_eq!(student.fidelity, Fidelity::of(&student.tree, held_out, ActionProfile::Full));
    // No part plays the episodes of another. Only an idle node looks the same in two of them.
    let parts: Vec<&[Visit]> = visits.chunks(3000).collect();
    for (index, part) in parts.iter().enumerate() {
        let before: Vec<&Visit> = parts[..index].iter().copied().flatten().collect();
        let repeated = part.iter().filter(|visit| before.contains(visit)).count();
        assert!(repeated < 300, "part {index} repeats {repeated} of {}", part.len());
    }
}

#[test]
fn no_two_episodes_are_alike() {
    let stop = AtomicBool::new(false);
    let arena = ServingArena::new(&crowded(ActionProfile::Full)).unwrap();
    let play = |seed: u64, samples: usize| {
        let plan = SamplingPlan { seed, episodes: 2, samples };
        dagger::play(&arena, &Rules(cautious), plan, &stop)
    };
    let visits = play(1, 200).unwrap();
    let repeated = |visit: &&Visit| visits.iter().filter(|other| other == visit).count() > 1;
    // An idle node may look the same twice; most of the time it does not.
    assert!(visits.iter().filter(repeated).count() < 50);
    let other = play(2, 200).unwrap();
    assert!(visits.iter().filter(|visit| other.contains(visit)).count() < 50);
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(play(1, 200), Err(DistilError::Stopped)));
}

#[test]
fn short_episodes_are_played_until_there_are_enough() {
    let mut env = (*crowded(ActionProfile::Core)).clone();
    env.worlds[0].episodes.length = kvtide_envs::time::Micros::from_millis(3000);
    let config =
        DistilConfig { dagger_iterations: 0, episodes_per_iteration: 2, samples_per_iteration: 400, ..quick() };
    let stop = AtomicBool::new(false);
    let student = distil(&Rules(cautious), &Arc::new(env), &config, &mut |_| {}, &stop).unwrap();
    assert_eq!((student.samples, student.fidelity.samples), (400, 120));
}

#[test]
fn it_stops_when_asked_and_says_what_is_wrong() {
    let stop = AtomicBool::new(true);
    let outcome = distil(&Rules(cautious), &crowded(ActionProfile::Full), &quick(), &mut |_| {}, &stop);
    assert!(matches!(outcome, Err(DistilError::Stopped)));
    // In the middle: after the first student.
    stop.store(false, Ordering::Relaxed);
    let mut iterations = 0;
    let mut interrupt = |_| {
        iterations += 1;
        stop.store(true, Ordering::Relaxed);
    };
    let outcome = distil(&Rules(cautious), &crowded(ActionProfile::Full), &quick(), &mut interrupt, &stop);
    assert!(matches!(outcome, Err(DistilError::Stopped)) && iterations == 1);

    let stop = AtomicBool::new(false);
    let config = DistilConfig { max_leaves: 9000, ..quick() };
    let outcome = distil(&Rules(cautious), &crowded(ActionProfile::Full), &config, &mut |_| {}, &stop);
    assert!(matches!(outcome, Err(DistilError::Config { field: "max_leaves", .. })));
    let mut env = (*crowded(ActionProfile::Full)).clone();
    env.worlds[0].node.engine.num_gpu_blocks = 0;
    let outcome = distil(&Rules(cautious), &Arc::new(env), &quick(), &mut |_| {}, &stop);
    assert!(matches!(outcome, Err(DistilError::Env(_))));
}

#[test]
fn an_engine_that_can_die_is_refused() {
    let mut env = (*crowded(ActionProfile::Full)).clone();
    env.worlds[0].node.engine.dead_ends = DeadEnds::Faithful;
    let stop = AtomicBool::new(false);
    let swaps = Rules(|_| [0, 0, 0, 0, 8, 0]);
    let outcome = distil(&swaps, &Arc::new(env), &quick(), &mut |_| {}, &stop);
    assert!(matches!(outcome, Err(DistilError::Env(EnvError::Faithful))), "{outcome:?}");
}
