//! Estimates without bias: of the components of a crossed design, and of the square of an expectation.

/// A table of one observation a cell, `[rows][columns]`, as a random-effects model without replication has it:
/// `x_rc = μ + a_r + b_c + e_rc` (Searle, Casella, `McCulloch` 1992, section 4.3). Estimates can be below 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Crossed {
    /// Mean of all cells.
    pub(super) mean: f64,
    /// Variance of `a`.
    pub(super) rows: f64,
    /// Variance of `b`.
    pub(super) columns: f64,
    /// Variance of `e`.
    pub(super) interaction: f64,
    /// Variance of the mean of all cells about μ.
    pub(super) of_mean: f64,
}

impl Crossed {
    /// Of at least two rows and columns.
    pub(super) fn of(cells: &[Vec<f64>]) -> Crossed {
        let (rows, columns) = (cells.len() as f64, cells[0].len() as f64);
        let row_means: Vec<f64> = cells.iter().map(|row| mean(row.iter().copied())).collect();
        let column_means: Vec<f64> =
            (0..cells[0].len()).map(|column| mean(cells.iter().map(|row| row[column]))).collect();
        let grand = mean(row_means.iter().copied());
        let residuals = cells.iter().zip(&row_means).flat_map(|(row, row_mean)| {
            row.iter().zip(&column_means).map(move |(cell, column_mean)| cell - row_mean - column_mean + grand)
        });
        let interaction = residuals.map(|residual| residual * residual).sum::<f64>() / ((rows - 1.0) * (columns - 1.0));
        let by_row = columns * variance(row_means.into_iter());
        let by_column = rows * variance(column_means.into_iter());
        let (a, b) = ((by_row - interaction) / columns, (by_column - interaction) / rows);
        let of_mean = a / rows + b / columns + interaction / (rows * columns);
        Crossed { mean: grand, rows: a, columns: b, interaction, of_mean }
    }
}

/// What is known of values `[future][action seed]` of one state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Squares {
    /// Mean of the values.
    pub(super) mean: f64,
    /// Mean of their squares.
    pub(super) square: f64,
    /// Mean product of two with other actions on the same future: the mean square of the expectation given the future.
    pub(super) same_future: f64,
    /// Mean product of two with neither in common: the square of the expectation.
    pub(super) apart: f64,
}

impl Squares {
    /// Of at least two futures and two action seeds.
    pub(super) fn of(values: &[Vec<f64>]) -> Squares {
        let (futures, actions) = (values.len() as f64, values[0].len() as f64);
        let sum_of = |values: &[f64]| values.iter().sum::<f64>();
        let square_of = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();
        let total: f64 = values.iter().map(|row| sum_of(row)).sum();
        let squares: f64 = values.iter().map(|row| square_of(row)).sum();
        let by_future: f64 = values.iter().map(|row| sum_of(row).powi(2)).sum();
        let by_actions: f64 =
            (0..values[0].len()).map(|column| values.iter().map(|row| row[column]).sum::<f64>().powi(2)).sum();
        // Pairs that share a future, or action seeds, or are one and the same, are left out of all pairs.
        let apart = total * total - by_future - by_actions + squares;
        Squares {
            mean: total / (futures * actions),
            square: squares / (futures * actions),
            same_future: (by_future - squares) / (futures * actions * (actions - 1.0)),
            apart: apart / (futures * (futures - 1.0) * actions * (actions - 1.0)),
        }
    }
}

/// The mean; 0 of none.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// The variance of a sample, over `n − 1`; 0 of fewer than two.
pub(super) fn variance(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let (centre, count) = (mean(values.clone()), values.clone().count() as f64);
    if count < 2.0 { 0.0 } else { values.map(|value| (value - centre).powi(2)).sum::<f64>() / (count - 1.0) }
}
