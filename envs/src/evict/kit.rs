//! One story for every policy, and what no policy may do.
//!
//! The story is the same for all; a policy says, step by step, in which order its blocks then are. Around it the kit
//! checks the contract of [`Evict`]: what is told once is in the order once, what is taken leaves the others as they were,
//! the head of the order is the victim, and who does not count lookups is not moved by them.

use proptest::collection::vec;
use proptest::test_runner::{Config, TestRunner};

use super::{BlockView, Evict};

/// Blocks of the story, the null block among them.
const NUM_BLOCKS: u32 = 8;

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
    ($policy:ident: $($step:ident [$($block:literal),*]),+ $(,)?) => {
        mod tests {
            use super::$policy;
            use crate::evict::kit;

            #[test]
            fn the_story() {
                kit::tell::<$policy>(&[$((stringify!($step), &[$($block),*][..])),+]);
            }

            #[test]
            fn the_contract() {
                kit::keep::<$policy>();
            }
        }
    };
}
pub(super) use tells;

/// Tells the story, and compares the whole order after each step.
pub(super) fn tell<E: Evict>(orders: &[(&str, &[u32])]) {
    let steps: Vec<&str> = STORY.iter().map(|step| step.0).collect();
    assert_eq!(orders.iter().map(|order| order.0).collect::<Vec<_>>(), steps, "an order for each step of the story");
    let mut checked = Checked::<E>::new(NUM_BLOCKS);
    for ((step, told), (_, order)) in STORY.iter().zip(orders) {
        match *told {
            Told::Idle(path) => path.iter().for_each(|&block| checked.idle(block)),
            Told::Accessed(path) => path.iter().for_each(|&block| checked.accessed(block)),
            Told::Taken(path) => path.iter().for_each(|&block| checked.taken(block)),
            Told::Victims(count) => (0..count.min(checked.order().len())).for_each(|_| checked.victim()),
        }
        assert_eq!(checked.order(), *order, "{step}");
    }
}

/// Tells a policy whatever a pool may, in every order, and holds it to the contract.
pub(super) fn keep<E: Evict>() {
    let ops = vec((0..4_u8, 1..NUM_BLOCKS), 0..100);
    let mut runner = TestRunner::new(Config::with_cases(500));
    let kept = runner.run(&ops, |ops| {
        let mut checked = Checked::<E>::new(NUM_BLOCKS);
        for (op, block) in ops {
            match (op, checked.order().contains(&block)) {
                (0, false) => checked.idle(block),
                (1, true) => checked.accessed(block),
                (2, true) => checked.taken(block),
                (3, _) => checked.victim(),
                _ => {}
            }
        }
        Ok(())
    });
    kept.unwrap_or_else(|broken| panic!("{broken}"));
}

/// A policy that is watched: each call is checked for what the contract says of it.
struct Checked<E>(E);

impl<E: Evict> Checked<E> {
    fn new(num_blocks: u32) -> Checked<E> {
        let checked = Checked(E::new(num_blocks));
        assert!(checked.order().is_empty(), "nothing is idle in the beginning");
        checked
    }

    /// The order now, each block of it once, and what asking for victims would give.
    fn order(&self) -> Vec<u32> {
        let order: Vec<u32> = self.0.order().collect();
        let mut rest = self.0.clone();
        assert_eq!(std::iter::from_fn(|| rest.victim()).collect::<Vec<_>>(), order, "victims come in order");
        assert!(order.iter().all(|&block| self.0.is_sound(block)), "{order:?}");
        order
    }

    fn idle(&mut self, block: u32) {
        let before = self.order();
        self.0.idle(BlockView { block });
        assert_eq!(without(&self.order(), block), before, "the others keep their order");
        assert_eq!(self.order().len(), before.len() + 1, "{block} became idle");
    }

    fn accessed(&mut self, block: u32) {
        let before = self.order();
        if E::LOOKUP_IS_USE {
            self.0.accessed(BlockView { block });
            assert_eq!(without(&self.order(), block), without(&before, block), "the others keep their order");
            assert_eq!(self.order().len(), before.len(), "{block} stays idle");
        } else {
            let mut same = self.0.clone();
            same.accessed(BlockView { block });
            assert!(same.order().eq(before), "an access counts: LOOKUP_IS_USE");
        }
    }

    fn taken(&mut self, block: u32) {
        let expected = without(&self.order(), block);
        self.0.taken(BlockView { block });
        assert_eq!(self.order(), expected, "{block} is taken");
    }

    fn victim(&mut self) {
        let before = self.order();
        assert_eq!(self.0.victim(), before.first().copied());
        assert_eq!(self.order(), before.get(1..).unwrap_or_default());
    }
}

fn without(order: &[u32], block: u32) -> Vec<u32> {
    order.iter().copied().filter(|&other| other != block).collect()
}
