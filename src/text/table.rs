//! Tables for people.

use std::fmt::Write;

use super::{columns, wrapped};

/// Spaces between columns.
const GAP: usize = 2;

/// A column's name, in two lines: what it is, and the rest of it with the unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    top: String,
    bottom: String,
}

impl Column {
    /// `top` over `bottom`; `bottom` alone where `top` is empty.
    pub fn new(top: &str, bottom: &str) -> Column {
        Column { top: top.to_owned(), bottom: bottom.to_owned() }
    }
}

/// Rows under named columns: the first to the left, the others to the right. Where a table is wider than it may be, the columns
/// that do not fit stand in a block of their own below, beside the first column again.
#[derive(Debug, Clone)]
pub struct TextTable {
    columns: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone)]
struct Row {
    cells: Vec<String>,
    /// Beneath it, once.
    notes: Vec<String>,
}

impl TextTable {
    /// Without rows.
    pub fn new(columns: Vec<Column>) -> TextTable {
        TextTable { columns, rows: Vec::new() }
    }

    /// One row more: as many cells as there are columns; those that are left out are empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(Row { cells, notes: Vec::new() });
    }

    /// A line beneath the last row.
    pub fn note(&mut self, text: String) {
        if let Some(row) = self.rows.last_mut() {
            row.notes.push(text);
        }
    }

    /// As text at most `width` columns wide, but for a first column and one more that take more together.
    pub fn render(&self, width: usize) -> String {
        let mut text = String::new();
        for (index, block) in self.blocks(width).iter().enumerate() {
            if index > 0 {
                text.push('\n');
            }
            self.write_block(&mut text, block, index == 0, width);
        }
        text
    }

    /// Which columns stand side by side; the first is in each block.
    fn blocks(&self, width: usize) -> Vec<Vec<usize>> {
        let mut blocks: Vec<Vec<usize>> = Vec::new();
        let mut wide = 0;
        for column in 1..self.columns.len() {
            let more = GAP + self.width_of(column);
            match blocks.last_mut() {
                Some(block) if wide + more <= width => block.push(column),
                _ => {
                    wide = self.width_of(0);
                    blocks.push(vec![0, column]);
                }
            }
            wide += more;
        }
        if blocks.is_empty() { vec![vec![0]] } else { blocks }
    }

    fn width_of(&self, column: usize) -> usize {
        let Column { top, bottom } = &self.columns[column];
        let cells = self.rows.iter().filter_map(|row| row.cells.get(column)).map(String::as_str);
        cells.chain([top.as_str(), bottom.as_str()]).map(columns).max().unwrap_or(0)
    }

    fn write_block(&self, text: &mut String, block: &[usize], with_notes: bool, width: usize) {
        let widths: Vec<usize> = block.iter().map(|&column| self.width_of(column)).collect();
        if block.iter().any(|&column| !self.columns[column].top.is_empty()) {
            write_line(text, &widths, block.iter().map(|&column| self.columns[column].top.as_str()));
        }
        write_line(text, &widths, block.iter().map(|&column| self.columns[column].bottom.as_str()));
        for row in &self.rows {
            write_line(text, &widths, block.iter().map(|&column| row.cells.get(column).map_or("", String::as_str)));
            for note in row.notes.iter().filter(|_| with_notes) {
                text.push_str(&wrapped(&format!("  {note}"), width, 2));
            }
        }
    }
}

fn write_line<'a>(text: &mut String, widths: &[usize], cells: impl Iterator<Item = &'a str>) {
    let mut line = String::new();
    for (index, (cell, width)) in cells.zip(widths).enumerate() {
        let pad = " ".repeat(width.saturating_sub(columns(cell)));
        let _ = if index == 0 { write!(line, "{cell}{pad}") } else { write!(line, "{:GAP$}{pad}{cell}", "") };
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table =
            TextTable::new(vec![Column::new("", "policy"), Column::new("TTFT", "p99 s"), Column::new("", "tokens/s")]);
        table.row(["default", "12.62", "526"].map(str::to_owned).to_vec());
        table.note("a note".to_owned());
        table.row(["策略", "–"].map(str::to_owned).to_vec());
        table
    }

    #[test]
    fn columns_stand_side_by_side_where_there_is_room() {
        let expected = "          TTFT\npolicy   p99 s  tokens/s\ndefault  12.62       526\n  a note\n策略         –\n";
        assert_eq!(table().render(24), expected);
        assert_eq!(table().render(500), expected);
    }

    #[test]
    fn what_does_not_fit_stands_below() {
        let expected = "          TTFT\npolicy   p99 s\ndefault  12.62\n  a note\n策略         –\n\npolicy   tokens/s\ndefault       526\n策略\n";
        assert_eq!(table().render(23), expected);
        // Narrower than two columns it cannot be.
        assert_eq!(table().render(16), expected);
    }
}
