//! The prefix hashes of a request, in lists that requests share.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Hashes of a prompt's full prefix blocks: the first so many of a list that other requests may share. Cloning copies no
/// hash, and a conversation whose turns each continue the one before is one list in memory, that of its last turn.
#[derive(Clone, Default)]
pub struct HashIds {
    list: Arc<[u64]>,
    len: usize,
}

impl HashIds {
    /// The first `len` hashes, or all if there are fewer, out of the same list.
    #[must_use]
    pub fn first(&self, len: usize) -> HashIds {
        HashIds { list: Arc::clone(&self.list), len: len.min(self.len) }
    }
}

impl Deref for HashIds {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.list[..self.len]
    }
}

impl From<Vec<u64>> for HashIds {
    fn from(hashes: Vec<u64>) -> HashIds {
        HashIds { len: hashes.len(), list: hashes.into() }
    }
}

impl FromIterator<u64> for HashIds {
    fn from_iter<I: IntoIterator<Item = u64>>(hashes: I) -> HashIds {
        let list: Arc<[u64]> = hashes.into_iter().collect();
        HashIds { len: list.len(), list }
    }
}

impl<'a> IntoIterator for &'a HashIds {
    type Item = &'a u64;
    type IntoIter = std::slice::Iter<'a, u64>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for HashIds {
    fn eq(&self, other: &HashIds) -> bool {
        **self == **other
    }
}

impl Eq for HashIds {}

impl fmt::Debug for HashIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl Serialize for HashIds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for HashIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HashIds, D::Error> {
        Vec::deserialize(deserializer).map(HashIds::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_share_one_list() {
        let last = HashIds::from(vec![1, 2, 3]);
        let (first, all) = (last.first(2), last.first(9));
        assert_eq!((&*first, &*all), (&[1, 2][..], &[1, 2, 3][..]));
        assert!(Arc::ptr_eq(&first.list, &last.list));
        assert_eq!(first, HashIds::from_iter([1, 2]));
        assert_eq!((first.first(3), HashIds::default()), (first.clone(), Vec::new().into()));
        assert_eq!(serde_json::to_string(&first).unwrap(), "[1,2]");
        assert_eq!(format!("{first:?}"), "[1, 2]");
    }
}
