//! Gains by drawn clocks as text for people.

use std::fmt::Write;

use super::clock::ClockGain;
use super::table::signed;
use crate::policy::{PolicyName, short_names};
use crate::text::{Column, TextTable, wrapped};
use crate::world::World;

/// `gains` as tables at most `width` columns wide, one for each policy that others are compared with: of the policies that are
/// judged, or of all if they are nothing but references. Empty where nothing was drawn.
pub fn render_clocks(world: &World, names: &[&PolicyName], gains: &[ClockGain], width: usize) -> String {
    let short = short_names(names);
    let short = |name: &PolicyName| {
        let place = names.iter().position(|known| *known == name);
        place.map_or_else(|| name.to_string(), |place| short[place].clone())
    };
    let mut text = String::new();
    for than in names.iter().copied().filter(|than| gains.iter().any(|gain| gain.than == **than)) {
        let lines: Vec<&ClockGain> = shown(gains).filter(|gain| gain.than == *than).collect();
        let Some(first) = lines.first() else { continue };
        let mut table = TextTable::new(vec![
            Column::new("", "policy"),
            Column::new("gain", "points"),
            Column::new("median [5 %, 95 %]", "points"),
            Column::new("gains", "by"),
            Column::new("at worst", "points"),
        ]);
        for gain in &lines {
            table.row(vec![
                short(&gain.policy),
                signed(gain.gain),
                format!("{} [{}, {}]", signed(gain.median), signed(gain.low), signed(gain.high)),
                format!("{} of {}", gain.gaining_draws(), gain.draws.len()),
                signed(gain.worst.gain),
            ]);
            let worst = &gain.worst;
            table.note(format!("worst: draw {}, {}", worst.draw, world.factors_text(&worst.factors)));
        }
        let drawn = first.draws.len();
        let clocks = if drawn == 1 { "clock" } else { "clocks" };
        let _ = write!(text, "\ngain over {} by {drawn} drawn {clocks}\n{}", short(than), table.render(width));
    }
    if !text.is_empty() {
        text.push('\n');
        let note =
            format!("{}; requests, loads, targets and the engine's settings are the same by each", world.spread_text());
        text.push_str(&wrapped(&note, width, 2));
    }
    text
}

/// Gains of the policies that are judged; of all if they are nothing but references.
pub fn shown(gains: &[ClockGain]) -> impl Iterator<Item = &ClockGain> {
    let is_judged = |gain: &ClockGain| !gain.policy.spec().is_yardstick();
    let has_any = gains.iter().any(is_judged);
    gains.iter().filter(move |gain| !has_any || is_judged(gain))
}
