//! What an agent chooses from, and what it means.

use std::collections::BTreeSet;

use kvtide_envs::env::{EnvConfig, EnvError};
use kvtide_runtime::{Action, ActionMask, Head};

/// The actions an agent may take: a choice of each of `heads`, or one number for all of them together. Heads that are not among
/// them stay as the engine has them by itself.
#[derive(Debug)]
pub struct Actions {
    heads: Vec<Head>,
    /// Every joint choice that some world allows, in the order of its choices.
    joint: Option<Vec<Vec<u8>>>,
    sizes: Vec<usize>,
}

/// What is wrong with an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// There is no such choice: of which number of the action, and how many choices there are.
    Range(usize, usize),
    /// It is not allowed now: which number of the action.
    Forbidden(usize),
}

impl Actions {
    /// Those of `named`, or of all heads of which some world of `config` leaves a choice.
    ///
    /// # Errors
    /// A setting of the engine.
    pub fn new(config: &EnvConfig, named: Option<Vec<Head>>, joint: bool) -> Result<Actions, EnvError> {
        let masks = config.masks()?;
        let is_open = |head: &Head| masks.iter().any(|mask| mask.words()[*head as usize].count_ones() > 1);
        let mut heads = named.unwrap_or_else(|| Head::ALL.into_iter().filter(is_open).collect());
        // Where nothing can be chosen there is still an action.
        if heads.is_empty() {
            heads.push(Head::Watermark);
        }
        let joint: Option<Vec<Vec<u8>>> = joint.then(|| {
            let all: BTreeSet<Vec<u8>> = masks.iter().flat_map(|mask| products(&heads, *mask)).collect();
            all.into_iter().collect()
        });
        let sizes = match &joint {
            Some(joint) => vec![joint.len()],
            None => heads.iter().map(|head| head.size()).collect(),
        };
        Ok(Actions { heads, joint, sizes })
    }

    /// The heads.
    pub fn heads(&self) -> &[Head] {
        &self.heads
    }

    /// Every joint choice, if actions are such.
    pub fn joint(&self) -> Option<&[Vec<u8>]> {
        self.joint.as_deref()
    }

    /// How many choices each number of an action has.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The action that `given` is, obeying `mask`: what it forbids is replaced by the first that it allows, as on a node. Heads
    /// that are not chosen are those of `default`.
    pub fn action(&self, given: &[i64], mask: ActionMask, default: Action) -> Result<(Action, Option<Wrong>), Wrong> {
        let is_choice = |(&choice, &size): (&i64, &usize)| usize::try_from(choice).is_ok_and(|choice| choice < size);
        if let Some(number) = given.iter().zip(&self.sizes).position(|pair| !is_choice(pair)) {
            return Err(Wrong::Range(number, self.sizes[number]));
        }
        let mut action = mask.repair(default);
        let mut forbidden = None;
        for (place, head) in self.heads.iter().enumerate() {
            let (number, choice) = match &self.joint {
                Some(joint) => (0, joint[given[0] as usize][place]),
                None => (place, given[place] as u8),
            };
            if !mask.allows(*head, choice) && forbidden.is_none() {
                forbidden = Some(Wrong::Forbidden(number));
            }
            action = action.with(*head, choice).unwrap_or(action);
        }
        Ok((mask.repair(action), forbidden))
    }

    /// The numbers that stand for `action`; of a joint choice that no world allows, the first.
    pub fn numbers(&self, action: Action) -> Vec<usize> {
        let choices: Vec<u8> = self.heads.iter().map(|head| action.get(*head)).collect();
        match &self.joint {
            Some(joint) => vec![joint.binary_search(&choices).unwrap_or(0)],
            None => choices.into_iter().map(usize::from).collect(),
        }
    }

    /// Whether each choice can be taken under `mask`.
    pub fn write_mask(&self, mask: ActionMask, into: &mut [i8]) {
        let write = |(into, allowed): (&mut i8, bool)| *into = i8::from(allowed);
        if let Some(joint) = &self.joint {
            let allowed = |choices: &Vec<u8>| self.heads.iter().zip(choices).all(|(head, &c)| mask.allows(*head, c));
            into.iter_mut().zip(joint.iter().map(allowed)).for_each(write);
        } else {
            let choices = self.heads.iter().flat_map(|head| (0..head.size()).map(|choice| (*head, choice as u8)));
            into.iter_mut().zip(choices.map(|(head, choice)| mask.allows(head, choice))).for_each(write);
        }
    }
}

/// Every choice of `heads` together that `mask` allows.
fn products(heads: &[Head], mask: ActionMask) -> Vec<Vec<u8>> {
    heads.iter().fold(vec![Vec::new()], |begun, head| {
        let allowed = (0..head.size() as u8).filter(|&choice| mask.allows(*head, choice));
        let allowed: Vec<u8> = allowed.collect();
        begun.iter().flat_map(|choices| allowed.iter().map(move |&next| [&choices[..], &[next]].concat())).collect()
    })
}
