//! What was run, and by what.

use std::fmt::Write;

use kvtide_envs::seed::RunHash;
use maud::{Markup, html};

use super::ReportInput;
use crate::plot::svg::Words;

/// The command, and everything the results depend on.
pub(super) fn settings(material: &ReportInput<'_>) -> Markup {
    let ReportInput { world, matrix, found, rows, .. } = *material;
    let engine = &world.node.engine;
    let list = |values: Vec<String>| values.join(", ");
    let windows =
        matrix.windows.iter().map(|window| window.map_or_else(|| "all".to_owned(), |window| window.to_string()));
    let mut loads = list(matrix.loads.iter().map(f64::to_string).collect());
    let attained = found.iter().filter_map(|one| Some(format!("{}: {:.1} %", one.load?, one.attained? * 100.0)));
    let attained: Vec<String> = attained.collect();
    if !attained.is_empty() {
        let _ = write!(loads, " (found; the default attained {})", attained.join(", "));
    }
    let mut hash = RunHash::default();
    for row in rows {
        row.summary.hash.bytes().for_each(|byte| hash.absorb(u64::from(byte)));
    }
    let traffic =
        world.fingerprint().map_or_else(|| "generated".to_owned(), |hash| format!("recorded, fingerprint {hash}"));
    let clients = world
        .node
        .clients
        .map_or_else(|| "open loop".to_owned(), |clients| format!("closed loop, {clients} clients at load 1"));
    let facts = [
        ("traffic", format!("{}, {traffic}, {clients}", world.trace)),
        ("windows", list(windows.collect())),
        ("loads", loads),
        ("seeds", list(matrix.seeds.iter().map(u64::to_string).collect())),
        ("node", world.deployment.name()),
        (
            "engine",
            format!(
                "{}, {} blocks of {} tokens, {} on the host, max_num_seqs {}, max_num_batched_tokens {}, max_model_len {}{}{}",
                engine.engine.name(),
                engine.num_gpu_blocks,
                engine.block_size,
                engine.num_cpu_blocks,
                engine.max_num_seqs,
                engine.max_num_batched_tokens,
                engine.max_model_len,
                if engine.async_scheduling { ", asynchronous" } else { "" },
                if engine.enable_prefix_caching { ", prefix cache" } else { "" }
            ),
        ),
        ("targets", world.node.slo.to_string()),
        (
            "decisions",
            format!("every {} scheduler steps, and when something is first refused", world.decision_interval),
        ),
        (
            "made by",
            format!(
                "kvtide {}, commit {}; hash of {} runs {:016x}",
                env!("CARGO_PKG_VERSION"),
                option_env!("KVTIDE_COMMIT").unwrap_or("unknown"),
                rows.len(),
                hash.value()
            ),
        ),
    ];
    html! {
        pre { (Words(&material.command)) }
        dl { @for (name, value) in facts { "\n" dt { (name) } dd { (Words(&value)) } } }
    }
}
