//! In which line of a profile a value stands.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The line, counted from 1, of `key` below the table `section` of a file, both as paths: `products[0].rows[1].us` below
/// `hardware.kernels`. Where the file has no such key, that of the last it has on the way there.
pub(super) fn line_of(text: &str, section: &str, key: &str) -> Option<usize> {
    let file = DeTable::parse(text).ok()?;
    let mut parts = section.split('.').chain(key.split(['.', '[']));
    let mut at = file.get_ref().get(parts.next()?)?;
    for part in parts {
        match inside(at, part) {
            Some(next) => at = next,
            None => break,
        }
    }
    Some(text[..at.span().start.min(text.len())].matches('\n').count() + 1)
}

/// What stands in a table under `part`, or in a list at `0]`. A key that is not there may stand one table farther in, as
/// that of a shape does.
fn inside<'a, 'i>(place: &'a Spanned<DeValue<'i>>, part: &str) -> Option<&'a Spanned<DeValue<'i>>> {
    match (place.get_ref(), part.strip_suffix(']')) {
        (DeValue::Array(list), Some(index)) => list.get(index.parse::<usize>().ok()?),
        (DeValue::Table(table), None) => table.get(part).or_else(|| {
            let farther = table.iter().find_map(|(_, value)| value.get_ref().as_table()?.get(part));
            farther.filter(|_| !part.is_empty())
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::line_of;

    #[test]
    fn a_value_is_found_by_its_path() {
        let text = "[a]\nlaunch = 1\n[a.b]\nlaunch = 2\n[[a.k.p]]\nrows = [\n  { us = [1] },\n  { n = 1, us = [\n 1] },\n]\n[[a.k.p]]\n\
                    shape = { heads = 3 }\n";
        for (section, key, line) in [
            ("a", "launch", 2),
            ("a.b", "launch", 4),
            ("a.k", "p[0].rows[0].us", 7),
            ("a.k", "p[0].rows[1].us", 8),
            ("a.k", "p[1].heads", 12),
            ("a.k", "p[1].tokens", 11),
            ("a.b", "elsewhere", 3),
        ] {
            assert_eq!(line_of(text, section, key), Some(line), "{section} {key}");
        }
        assert_eq!(line_of(text, "c", "launch"), None);
        assert_eq!(line_of("[a", "a", "launch"), None);
    }
}
