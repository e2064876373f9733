//! What [`heads!`] makes of the declaration in `heads.rs`: [`Head`](super::Head), [`HEADS`](super::HEADS),
//! [`Controls`](super::Controls), the engines' defaults, and an enum or a list of levels for each head.

use super::{ActionMask, Head, HeadSetting};

/// What a control is set to: a number, for a head with levels, or one of a set of rules.
pub(super) trait HeadValue: Copy + PartialEq + 'static {
    /// The index in `all` that comes nearest; the lower of equals.
    fn nearest(self, all: &[Self]) -> u8;

    /// The value that `text` names.
    fn read(text: &str, all: &[Self]) -> Option<Self>;

    /// The value, whichever head's it is.
    fn setting(self) -> HeadSetting;

    /// The value, or the nearest that a scheduler can obey.
    fn sound(self, all: &[Self]) -> Self;

    /// The value, or the first choice of `head` that `mask` allows in its place.
    fn allowed(self, head: Head, mask: ActionMask, all: &[Self]) -> Self;
}

impl HeadValue for f64 {
    /// NaN is the first level.
    fn nearest(self, all: &[f64]) -> u8 {
        let distance = |level: usize| all.get(level).map_or(f64::INFINITY, |at| (at - self).abs());
        (1..all.len()).fold(0, |best, level| if distance(level) < distance(best) { level } else { best }) as u8
    }

    fn read(text: &str, all: &[f64]) -> Option<f64> {
        let [first, .., last] = all else { return None };
        text.parse().ok().filter(|value| (*first..=*last).contains(value))
    }

    fn setting(self) -> HeadSetting {
        HeadSetting::Level(self)
    }

    /// Between the first level and the last; NaN is the first.
    fn sound(self, all: &[f64]) -> f64 {
        // `max` drops NaN, `clamp` would keep it.
        let [first, .., last] = all else { return self };
        self.max(*first).min(*last)
    }

    /// It stays: it need not be one of the levels.
    fn allowed(self, _: Head, _: ActionMask, _: &[f64]) -> f64 {
        self
    }
}

/// Indexing without a panic path; constructors keep every index in range.
pub(super) fn pick<T: Copy>(all: &[T], index: u8, otherwise: T) -> T {
    all.get(usize::from(index)).copied().unwrap_or(otherwise)
}

/// The index of a default among its levels.
pub(super) const fn level_of(levels: &[f64], default: f64) -> u8 {
    let mut index = 0;
    while levels[index].to_bits() != default.to_bits() {
        index += 1;
    }
    index as u8
}

/// Whether levels are two or more finite numbers in ascending order.
pub(super) const fn are_ascending(levels: &[f64]) -> bool {
    let mut index = 1;
    while index < levels.len() && levels[index - 1] < levels[index] {
        index += 1;
    }
    index > 1 && index == levels.len() && levels[0].is_finite() && levels[index - 1].is_finite()
}

/// One arm for levels, one for choices, wherever the two kinds of heads differ.
macro_rules! head {
    // The items.
    (items $(#[$meta:meta])* levels $values:ident [$($level:literal),+ $(,)?]) => {
        $(#[$meta])*
        pub const $values: [f64; [$($level),+].len()] = [$($level),+];

        const _: () = assert!($crate::action::declare::are_ascending(&$values), "levels are in ascending order");
    };
    (items $(#[$meta:meta])* choices $values:ident { $($(#[$doc:meta])* $choice:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $values {
            $($(#[$doc])* $choice,)+
        }

        impl $values {
            /// Every choice, in index order.
            pub const ALL: &'static [$values] = &[$($values::$choice,)+];

            /// Every choice's name, in index order.
            const NAMES: &'static [&'static str] = &[$($text,)+];

            /// The choice's name in files, flags and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $($values::$choice => $text,)+
                }
            }

            /// The choice of that name.
            pub fn from_name(name: &str) -> Option<$values> {
                Self::ALL.iter().copied().find(|choice| choice.name() == name)
            }
        }

        impl $crate::action::declare::HeadValue for $values {
            fn nearest(self, _: &[$values]) -> u8 {
                self as u8
            }

            fn read(text: &str, _: &[$values]) -> Option<$values> {
                $values::from_name(text)
            }

            fn setting(self) -> $crate::action::HeadSetting {
                $crate::action::HeadSetting::Choice(self.name())
            }

            fn sound(self, _: &[$values]) -> $values {
                self
            }

            fn allowed(self, head: Head, mask: $crate::action::ActionMask, all: &[$values]) -> $values {
                $crate::action::declare::pick(all, mask.instead(head, self as u8), self)
            }
        }
    };
    // The type of the control.
    (type levels $values:ident) => { f64 };
    (type choices $values:ident) => { $values };
    // Every value.
    (all levels $values:ident) => { &$values };
    (all choices $values:ident) => { $values::ALL };
    // What a `HeadSpec` says of them.
    (spec levels $values:ident) => { $crate::action::Choices::Levels(&$values) };
    (spec choices $values:ident) => { $crate::action::Choices::Named($values::NAMES) };
    // The index of one.
    (index levels $values:ident $default:tt) => { $crate::action::declare::level_of(&$values, $default) };
    (index choices $values:ident $default:tt) => { $values::$default as u8 };
}

/// Declares the action set; `heads.rs` says how an entry is written.
macro_rules! heads {
    ($(
        $(#[doc = $doc:literal])+
        $head:ident {
            name: $name:literal, key: $key:literal, control: $control:ident, from: $profile:ident,
            asked: $asked:ident,
            engine: { v0: $v0:tt, v1: $v1:tt },
            $(#[$meta:meta])*
            $kind:ident $values:ident $list:tt
        }
    )+) => {
        /// One decision within an action.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Head {
            $($(#[doc = $doc])+ $head,)+
        }

        /// Number of heads.
        pub const NUM_HEADS: usize = [$($name),+].len();

        impl Head {
            /// Every head, in index order.
            pub const ALL: [Head; NUM_HEADS] = [$(Head::$head,)+];
        }

        /// Every head's meaning, in index order.
        pub const HEADS: [$crate::action::HeadSpec; NUM_HEADS] = [$($crate::action::HeadSpec {
            name: $name,
            key: $key,
            what: concat!($($doc),+).trim_ascii(),
            profile: ActionProfile::$profile,
            asked: $crate::action::Asked::$asked,
            choices: $crate::action::declare::head!(spec $kind $values),
        },)+];

        $($crate::action::declare::head!(items $(#[$meta])* $kind $values $list);)+

        /// What the V0 engine does by itself.
        pub(super) const V0_CHOICES: [u8; NUM_HEADS] = [$($crate::action::declare::head!(index $kind $values $v0),)+];

        /// What the V1 engine does by itself.
        pub(super) const V1_CHOICES: [u8; NUM_HEADS] = [$($crate::action::declare::head!(index $kind $values $v1),)+];

        /// Something for each head, by name: who leaves one out does not compile.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct PerHead<T> {
            $($(#[doc = $doc])+ pub $control: T,)+
        }

        impl<T> PerHead<T> {
            /// What stands for `head`.
            pub const fn get(&self, head: Head) -> &T {
                match head {
                    $(Head::$head => &self.$control,)+
                }
            }
        }

        /// The resolved action: what a scheduler obeys until the next decision. A control of a head with levels is any number
        /// from the first of them to the last.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct Controls {
            $($(#[doc = $doc])+ pub $control: $crate::action::declare::head!(type $kind $values),)+
        }

        impl Controls {
            /// What stands behind every choice of `choices`.
            pub(super) fn of(choices: [u8; NUM_HEADS]) -> Controls {
                use $crate::action::declare::pick;
                Controls {
                    $($control: {
                        const ALL: &[$crate::action::declare::head!(type $kind $values)] =
                            $crate::action::declare::head!(all $kind $values);
                        const OTHERWISE: $crate::action::declare::head!(type $kind $values) =
                            ALL[V1_CHOICES[Head::$head as usize] as usize];
                        pick(ALL, choices[Head::$head as usize], OTHERWISE)
                    },)+
                }
            }

            /// The choices that come nearest: of levels the nearest, the lower of equals; NaN is the first.
            pub(super) fn nearest(&self) -> [u8; NUM_HEADS] {
                [$(self.$control.nearest($crate::action::declare::head!(all $kind $values)),)+]
            }

            /// What `head` is set to.
            pub fn get(&self, head: Head) -> $crate::action::HeadSetting {
                match head {
                    $(Head::$head => self.$control.setting(),)+
                }
            }

            /// The same controls with `head` set to what `text` names, if it names a choice or a number in range.
            #[must_use]
            pub fn read(self, head: Head, text: &str) -> Option<Controls> {
                match head {
                    $(Head::$head => {
                        let value = HeadValue::read(text, $crate::action::declare::head!(all $kind $values))?;
                        Some(Controls { $control: value, ..self })
                    })+
                }
            }

            /// Takes over what `head` is set to.
            pub fn take(&mut self, head: Head, from: &Controls) {
                match head {
                    $(Head::$head => self.$control = from.$control,)+
                }
            }

            /// The same controls with every number within its levels; NaN is the first.
            #[must_use]
            pub fn sound(self) -> Controls {
                Controls { $($control: self.$control.sound($crate::action::declare::head!(all $kind $values)),)+ }
            }

            /// The same controls with every choice the mask forbids replaced; numbers stay, they need not be levels.
            #[must_use]
            pub fn repaired(self, mask: $crate::action::ActionMask) -> Controls {
                Controls {
                    $($control: {
                        self.$control.allowed(Head::$head, mask, $crate::action::declare::head!(all $kind $values))
                    },)+
                }
            }
        }
    };
}

pub(super) use {head, heads};
