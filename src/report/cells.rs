//! How tables are written: with their heads, so that each row can stand on its own where the page is narrow, and with what they
//! are sorted by.

use maud::{Markup, Render, html};

use crate::plot::svg::Words;

/// What stands in a column of a row.
pub(crate) struct Cell {
    markup: Markup,
    /// What it is sorted by: a number where that is not its text.
    key: Option<f64>,
}

impl Cell {
    /// Sorted by its text.
    pub(crate) fn text(words: impl Render) -> Cell {
        Cell { markup: words.render(), key: None }
    }

    /// Sorted by `key`; without one it comes last.
    pub(crate) fn number(words: impl Render, key: Option<f64>) -> Cell {
        Cell { markup: words.render(), key: Some(key.unwrap_or(f64::NAN)) }
    }
}

/// A table with a `caption` for whoever cannot see where it stands. The first cell of a row names it.
pub(crate) fn table(caption: &str, head: &[&str], rows: impl Iterator<Item = Vec<Cell>>) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(Words(caption)) {
            table {
                thead { tr { @for title in head { th scope="col" { (Words(title)) } } } }
                tbody { @for cells in rows { "\n" tr { @for (index, cell) in cells.iter().enumerate() { (written(cell, index, head)) } } } }
            }
        }
        "\n"
    }
}

fn written(cell: &Cell, index: usize, head: &[&str]) -> Markup {
    let key = cell.key.map(|key| if key.is_finite() { key.to_string() } else { String::new() });
    let label = head.get(index).filter(|label| !label.is_empty());
    html! {
        @if index == 0 { th scope="row" { (cell.markup) } }
        @else { td data-label=[label.map(|label| Words(label))] data-key=[key] { div { (cell.markup) } } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_knows_its_column_and_what_it_is_sorted_by() {
        let cells =
            vec![Cell::text("<a>"), Cell::number("1 s", Some(1000.0)), Cell::number("–", None), Cell::text("x")];
        let table = table("all \"of it\"", &["policy", "a&b", "wait", ""], std::iter::once(cells)).into_string();
        for part in [
            "aria-label=\"all &quot;of it&quot;\"",
            "<th scope=\"row\">&lt;a&gt;</th>",
            "<td data-label=\"a&amp;b\" data-key=\"1000\"><div>1 s</div></td>",
            "<td data-label=\"wait\" data-key=\"\"><div>–</div></td>",
            "<td><div>x</div></td>",
        ] {
            assert!(table.contains(part), "{part}: {table}");
        }
    }
}
