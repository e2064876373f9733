//! What tables were made for: this build's schema and action set, and those before it.
//!
//! Tables outlive builds. Features are only ever appended, so that an earlier schema is a beginning of today's, and heads
//! likewise; of a head with levels all earlier ones are still there, if at other indices. An earlier table is therefore read as
//! it is, and the choices at its leaves are translated as they are reached. Heads it does not know are left to the engine.

use crate::action::{self, ACTION_SET_HASH, Action, Choices, HEADS, Head, NUM_HEADS};
use crate::observation::{self, NUM_FEATURES, SCHEMA_HASH};

/// Most choices of a head, today's and earlier ones.
const MOST_CHOICES: usize = 32;

/// A schema and an action set that tables were made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edition {
    /// Its number, from 1; the last is today's.
    pub number: u8,
    /// Hash of its schema.
    pub schema_hash: u64,
    /// Hash of its action set.
    pub action_set_hash: u64,
    /// How many features it has, the first of today's.
    pub features: u8,
    /// How many heads it has, the first of today's.
    pub heads: u8,
    /// How many choices each of them has.
    sizes: [u8; NUM_HEADS],
    /// Today's index of each choice; of a head it does not have, the engine's own.
    today: [[u8; MOST_CHOICES]; NUM_HEADS],
}

/// Every edition, the earliest first; the last is today's. An entry is made when the schema or the action set moves, of what
/// was before.
pub static EDITIONS: [Edition; 2] = [
    Edition::past(
        1,
        31,
        &[
            Choices::Levels(&[0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5, 1.0]),
            first(Head::Victim, 5),
            first(Head::Preemption, 3),
            first(Head::Admission, 3),
        ],
    ),
    TODAY,
];

const TODAY: Edition = {
    let mut choices = [Choices::Named(&[]); NUM_HEADS];
    let mut head = 0;
    while head < NUM_HEADS {
        choices[head] = HEADS[head].choices;
        head += 1;
    }
    let today = Edition::past(2, NUM_FEATURES as u8, &choices);
    assert!(today.schema_hash == SCHEMA_HASH && today.action_set_hash == ACTION_SET_HASH);
    today
};

impl Edition {
    /// The edition of that schema and action set, if there was one.
    pub const fn of(schema_hash: u64, action_set_hash: u64) -> Option<&'static Edition> {
        // Today's first: most files are of today.
        let mut left = EDITIONS.len();
        while left > 0 {
            left -= 1;
            let edition = &EDITIONS[left];
            if edition.schema_hash == schema_hash && edition.action_set_hash == action_set_hash {
                return Some(edition);
            }
        }
        None
    }

    /// Today's.
    pub const fn today() -> &'static Edition {
        &EDITIONS[EDITIONS.len() - 1]
    }

    /// Whether it is today's.
    pub const fn is_today(&self) -> bool {
        self.schema_hash == SCHEMA_HASH && self.action_set_hash == ACTION_SET_HASH
    }

    /// Whether it knows `head`.
    pub const fn has(&self, head: Head) -> bool {
        (head as u8) < self.heads
    }

    /// How many choices `head` has in it; 0 if it does not know the head.
    pub const fn size(&self, head: Head) -> usize {
        self.sizes[head as usize] as usize
    }

    /// Today's indices of the choices that it numbers so; what it cannot number is the head's first.
    #[inline]
    pub const fn translate(&self, choices: [u8; NUM_HEADS]) -> [u8; NUM_HEADS] {
        let mut translated = [0; NUM_HEADS];
        let mut head = 0;
        while head < NUM_HEADS {
            translated[head] = self.today[head][choices[head] as usize % MOST_CHOICES];
            head += 1;
        }
        translated
    }

    const fn past(number: u8, features: u8, choices: &[Choices]) -> Edition {
        let (mut names, mut sizes) = ([""; NUM_HEADS], [0; NUM_HEADS]);
        let mut today = [[0; MOST_CHOICES]; NUM_HEADS];
        let mut head = 0;
        while head < NUM_HEADS {
            names[head] = HEADS[head].name;
            if head < choices.len() {
                sizes[head] = choices[head].len() as u8;
                today[head] = todays(choices[head], HEADS[head].choices);
            } else {
                let (v0, v1) = (Action::ENGINE_DEFAULT.indices()[head], Action::V1_DEFAULT.indices()[head]);
                assert!(
                    v0 == v1,
                    "what an engine does by itself in place of an absent head is the same for every engine"
                );
                today[head] = [v1; MOST_CHOICES];
            }
            head += 1;
        }
        let (known, _) = names.split_at(choices.len());
        Edition {
            number,
            schema_hash: observation::schema_hash(features as usize),
            action_set_hash: action::set_hash(known, choices),
            features,
            heads: choices.len() as u8,
            sizes,
            today,
        }
    }
}

/// The first `count` choices of `head`, which has names.
const fn first(head: Head, count: usize) -> Choices {
    match HEADS[head as usize].choices {
        Choices::Named(names) => Choices::Named(names.split_at(count).0),
        Choices::Levels(_) => panic!("levels are written out: they need not have been the first"),
    }
}

/// The index in `now` of each choice of `then`.
const fn todays(then: Choices, now: Choices) -> [u8; MOST_CHOICES] {
    let mut today = [0; MOST_CHOICES];
    let mut choice = 0;
    while choice < then.len() {
        today[choice] = match (then, now) {
            (Choices::Levels(then), Choices::Levels(now)) => {
                let mut index = 0;
                // Out of bounds, at compile time, if a level is gone.
                while now[index].to_bits() != then[choice].to_bits() {
                    index += 1;
                }
                index as u8
            }
            // Choices are only ever appended.
            _ => choice as u8,
        };
        choice += 1;
    }
    today
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::WATERMARK_LEVELS;

    /// The hashes in the headers of released tables.
    #[test]
    fn hashes_are_those_of_the_tables_there_are() {
        let hashes = EDITIONS.each_ref().map(|edition| (edition.schema_hash, edition.action_set_hash));
        assert_eq!(hashes[0], (0x0f69_729a_a932_a1a0, 0x6203_e25e_664e_3d4b));
        assert_eq!(hashes[1], (SCHEMA_HASH, ACTION_SET_HASH));
    }

    #[test]
    fn editions_are_found_by_both_hashes() {
        for edition in &EDITIONS {
            assert_eq!(Edition::of(edition.schema_hash, edition.action_set_hash), Some(edition));
            assert_eq!(edition.is_today(), edition == Edition::today());
        }
        assert_eq!(Edition::of(EDITIONS[0].schema_hash, ACTION_SET_HASH), None);
        assert!(EDITIONS.iter().enumerate().all(|(index, edition)| usize::from(edition.number) == index + 1));
    }

    #[test]
    fn a_choice_means_what_it_meant() {
        let then = [0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5, 1.0];
        for (index, level) in then.into_iter().enumerate() {
            let [watermark, rest @ ..] = EDITIONS[0].translate([index as u8, 4, 1, 2, 0, 0]);
            assert_eq!(WATERMARK_LEVELS[usize::from(watermark)], level);
            assert_eq!(rest, [4, 1, 2, 8, 0]);
        }
        let today = Action::V1_DEFAULT.indices();
        assert_eq!(Edition::today().translate(today), today);
        assert_eq!((EDITIONS[0].size(Head::Watermark), EDITIONS[0].size(Head::Budget)), (12, 0));
        assert!(EDITIONS[0].has(Head::Admission) && !EDITIONS[0].has(Head::Budget));
    }
}
