//! One story for every policy, and what no policy may do.
//!
//! The story is the same for all; a policy says, step by step, in which order its blocks then are. Around it the kit
//! checks the contract of [`Evict`]: what is told once is in the order once, what is taken leaves the others as they were,
//! the head of the order is the victim, and who does not count lookups is not moved by them. A policy whose order is of
//! several queues that it takes from by how full they are says that it `weighs`: there the others stay the same, and each
//! may go sooner or later.

use proptest::collection::vec;
use proptest::test_runner::{Config, TestRunner};

use super::{BlockView, Evict};

/// Blocks of the story, the null block among them.
const NUM_BLOCKS: u32 = 8;

/// Tokens of a block of the story.
const BLOCK_TOKENS: u32 = 16;

/// One thing told to a policy; paths are told from their last block to their first.
#[derive(Debug, Clone, Copy)]
enum Told {
    Idle(&'static [u32]),
    Accessed(&'static [u32]),
    Taken(&'static [u32]),
    /// So many victims are asked for.
    Victims(usize),
}

/// The story: two tables, 1 2 3 and 4 5 6, of which the first is found again, used as far as 1 2, and continued by 7.
const STORY: [(&str, Told); 9] = [
    ("a_table_is_given_back", Told::Idle(&[3, 2, 1])),
    ("another_is", Told::Idle(&[6, 5, 4])),
    ("a_lookup_hits_the_first_two", Told::Accessed(&[2, 1])),
    ("a_request_takes_them", Told::Taken(&[2, 1])),
    ("it_goes_on_and_gives_them_back", Told::Idle(&[7, 2, 1])),
    ("three_are_evicted", Told::Victims(3)),
    ("a_lookup_hits_what_is_left_of_the_second", Told::Accessed(&[4])),
    ("the_content_of_one_is_gone", Told::Taken(&[7])),
    ("all_are_evicted", Told::Victims(usize::MAX)),
];

/// Tests of a policy: the story with its orders, and the contract under random use.
macro_rules! tells {
    ($policy:ident: $($steps:tt)*) => {
        $crate::evict::kit::tells! { @ $policy, false, $($steps)* }
    };
    ($policy:ident weighs: $($steps:tt)*) => {
        $crate::evict::kit::tells! { @ $policy, true, $($steps)* }
    };
    (@ $policy:ident, $weighs:literal, $($step:ident [$($block:literal),*]),+ $(,)?) => {
        mod tests {
            use super::$policy;
            use crate::evict::kit;

            #[test]
            fn the_story() {
                kit::tell::<$policy>($weighs, &[$((stringify!($step), &[$($block),*][..])),+]);
            }

            #[test]
            fn the_contract() {
                kit::keep::<$policy>($weighs);
            }
        }
    };
}
pub(super) use tells;

/// Tells the story, and compares the whole order after each step.
pub(super) fn tell<E: Evict>(weighs: bool, orders: &[(&str, &[u32])]) {
    let steps: Vec<&str> = STORY.iter().map(|step| step.0).collect();
    assert_eq!(orders.iter().map(|order| order.0).collect::<Vec<_>>(), steps, "an order for each step of the story");
    let mut checked = Checked::<E>::new(NUM_BLOCKS, weighs);
    for ((step, told), (_, order)) in STORY.iter().zip(orders) {
        match *told {
            Told::Idle(path) => {
                let length = path.len() as u32;
                for (position, &block) in (0..length).rev().zip(path) {
                    checked.idle(BlockView { position, length, ..view(block) });
                }
            }
            Told::Accessed(path) => path.iter().for_each(|&block| checked.accessed(block)),
            Told::Taken(path) => {
                // What is gone already is not told again.
                let idle = checked.order();
                path.iter().filter(|block| idle.contains(block)).for_each(|&block| checked.taken(block));
            }
            Told::Victims(count) => (0..count.min(checked.order().len())).for_each(|_| checked.victim()),
        }
        assert_eq!(checked.order(), *order, "{step}");
    }
}

/// Tells a policy whatever a pool may, in every order, and holds it to the contract.
pub(super) fn keep<E: Evict>(weighs: bool) {
    let ops = vec((0..5_u8, 1..NUM_BLOCKS), 0..100);
    let mut runner = TestRunner::new(Config::with_cases(500));
    let kept = runner.run(&ops, |ops| {
        let mut checked = Checked::<E>::new(NUM_BLOCKS, weighs);
        for (op, block) in ops {
            match (op, checked.order().contains(&block)) {
                (0, false) => checked.idle(view(block)),
                (1, true) => checked.accessed(block),
                (2, true) => checked.taken(block),
                (3, _) => checked.victim(),
                (4, true) => checked.used(block),
                _ => {}
            }
        }
        Ok(())
    });
    kept.unwrap_or_else(|broken| panic!("{broken}"));
}

/// A block that is told with nothing around it.
fn view(block: u32) -> BlockView {
    BlockView { key: u64::from(block), ..BlockView::of(block) }
}

/// A policy that is watched: each call is checked for what the contract says of it.
struct Checked<E> {
    policy: E,
    weighs: bool,
}

impl<E: Evict> Checked<E> {
    fn new(num_blocks: u32, weighs: bool) -> Checked<E> {
        let checked = Checked { policy: E::new(num_blocks, BLOCK_TOKENS), weighs };
        assert!(checked.order().is_empty(), "nothing is idle in the beginning");
        checked
    }

    /// The order now, each block of it once, and what asking for victims would give.
    fn order(&self) -> Vec<u32> {
        let order: Vec<u32> = self.policy.order().collect();
        let mut rest = self.policy.clone();
        assert_eq!(std::iter::from_fn(|| rest.victim()).collect::<Vec<_>>(), order, "victims come in order");
        assert!(order.iter().all(|&block| self.policy.is_sound(block)), "{order:?}");
        let mut once = order.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), order.len(), "{order:?}");
        order
    }

    /// Whether the others are as they were.
    fn stay(&self, others: &[u32], before: &[u32]) {
        let (mut others, mut before) = (others.to_vec(), before.to_vec());
        if self.weighs {
            others.sort_unstable();
            before.sort_unstable();
        }
        assert_eq!(others, before, "the others keep their order");
    }

    fn idle(&mut self, view: BlockView) {
        let before = self.order();
        self.policy.idle(view);
        let after = self.order();
        self.stay(&without(&after, view.block), &before);
        assert_eq!(after.len(), before.len() + 1, "{} became idle", view.block);
    }

    fn accessed(&mut self, block: u32) {
        let before = self.order();
        if E::LOOKUP_IS_USE {
            self.policy.accessed(view(block));
            self.stay(&without(&self.order(), block), &without(&before, block));
            assert_eq!(self.order().len(), before.len(), "{block} stays idle");
        } else {
            let mut same = self.policy.clone();
            same.accessed(view(block));
            assert!(same.order().eq(before), "an access counts: LOOKUP_IS_USE");
        }
    }

    fn taken(&mut self, block: u32) {
        let before = self.order();
        self.policy.taken(view(block));
        self.stay(&self.order(), &without(&before, block));
    }

    fn used(&mut self, block: u32) {
        let mut in_steps = self.policy.clone();
        in_steps.taken(view(block));
        in_steps.idle(view(block));
        self.policy.used(view(block));
        assert!(in_steps.order().eq(self.order()), "a use of {block} is taking it and giving it back");
    }

    fn victim(&mut self) {
        let before = self.order();
        assert_eq!(self.policy.victim(), before.first().copied());
        assert_eq!(self.order(), before.get(1..).unwrap_or_default());
    }
}

fn without(order: &[u32], block: u32) -> Vec<u32> {
    order.iter().copied().filter(|&other| other != block).collect()
}
