//! What a database does not have for a model, and what stands for it, in sentences.

use std::collections::BTreeSet;

use kvtide_envs::deploy::{AttentionShape, KernelShapes, KernelTables, KvPrecision, Model, Precision};

/// What no database of kernels has, whatever the model.
const NEVER: &str =
    "norms, rotation, activations and sampling, swaps and the host: by memory bandwidth and the profile's constants";

/// What of `model` on so many `devices` is not in `tables`, each once.
pub(super) fn lacking(tables: &KernelTables, model: &Model, devices: &[u32]) -> Vec<String> {
    let mut said = Vec::new();
    let mut say = |sentence: String| {
        if !said.contains(&sentence) {
            said.push(sentence);
        }
    };
    let mut between = BTreeSet::new();
    for shapes in devices.iter().map(|devices| KernelShapes::of(model, *devices)) {
        let module = shapes.latent.filter(|(shape, _)| tables.latent_prefill_us(shape, 1.0).is_some());
        if shapes.latent.is_some() && module.is_none() {
            say("latent attention of these widths or this precision: by its products, and the roofline".to_owned());
        }
        let projections = if module.is_some() { &[][..] } else { &shapes.projections };
        for product in shapes.products.iter().chain(projections).chain([&shapes.head]) {
            let name = product.precision.name();
            match tables.products.iter().find(|table| table.precision == product.precision) {
                None => say(format!("products in {name}: those in bf16, by what the roofline says of both")),
                Some(table) if table.rows.iter().all(|row| (row.n, row.k) != (product.n, product.k)) => {
                    between.insert((product.n, product.k));
                }
                Some(_) => {}
            }
        }
        for (shape, _) in &shapes.attention {
            attention(tables, shape).into_iter().for_each(&mut say);
        }
        if let Some((shape, _)) = &shapes.experts {
            let near = tables.experts.iter().any(|table| table.shape() == *shape);
            let sentence = match tables.experts_us(shape, 1.0) {
                None if tables.experts.is_empty() => Some("routed experts: by the roofline".to_owned()),
                None => Some(format!(
                    "experts in {}: those in bf16, by what the roofline says of both",
                    shape.precision.name()
                )),
                Some(_) if near => None,
                Some(_) => Some(format!(
                    "{} experts of {} wide, {} to a token: from the nearest measured, by tokens to an expert",
                    shape.experts, shape.inter, shape.top_k
                )),
            };
            sentence.into_iter().for_each(&mut say);
        }
    }
    for devices in devices.iter().filter(|devices| **devices > 1) {
        if tables.all_reduce.is_empty() {
            say("all-reduces: by the link's bandwidth".to_owned());
        } else if tables.all_reduce.iter().all(|table| table.devices != *devices) {
            say(format!("all-reduces among {devices}: from the nearest number of devices"));
        }
    }
    if !between.is_empty() {
        let shapes: Vec<String> = between.into_iter().map(|(n, k)| format!("{n}×{k}")).collect();
        say(format!("products of {} (outputs × inputs): between the shapes measured around them", shapes.join(", ")));
    }
    said.push("attention of a chunk after cached tokens: from prompts without any, by pairs of tokens".to_owned());
    said.push(NEVER.to_owned());
    said
}

fn attention(tables: &KernelTables, shape: &AttentionShape) -> Vec<String> {
    let AttentionShape { heads, kv_heads, head_dim, window, kv } = *shape;
    let window = if window == 0 { String::new() } else { format!(", window {window}") };
    let kv = if kv == KvPrecision::Fp8 { ", fp8" } else { "" };
    let name = format!("{heads}/{kv_heads} heads of {head_dim}{window}{kv}");
    let prefill = tables.prefill.iter().any(|table| table.shape == *shape);
    let decode = tables.decode.iter().any(|table| table.shape == *shape);
    let what = match (prefill, decode) {
        (true, true) => return Vec::new(),
        (false, true) => "of prompts ",
        (true, false) => "of decodes ",
        (false, false) => "",
    };
    vec![format!("attention {what}with {name}: from the nearest heads measured, by the work they share")]
}

/// What of every model is not there: the families themselves.
pub(super) fn lacking_of_any(tables: &KernelTables) -> Vec<String> {
    let mut said = Vec::new();
    for precision in [Precision::Fp8, Precision::Int8, Precision::Int4] {
        if tables.products.iter().all(|table| table.precision != precision) {
            said.push(format!("products in {}: those in bf16, by what the roofline says of both", precision.name()));
        }
    }
    if tables.latent.is_empty() {
        said.push("latent attention: by its products, and the roofline".to_owned());
    }
    said.push("shapes that are not here: from those around them, or the nearest relative".to_owned());
    said.push("attention of a chunk after cached tokens: from prompts without any, by pairs of tokens".to_owned());
    said.push(NEVER.to_owned());
    said
}
