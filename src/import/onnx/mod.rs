//! A policy out of an ONNX file: a chain of layers from the observation to the logits, and nothing else.
//!
//! A whole runtime for it would be a hundred times this tool's size; what exporters make of a multilayer perceptron is `Gemm`, or
//! `MatMul` and `Add`, with `Tanh` or `Relu` between. Whatever else is on the way is refused by the node's name.

mod model;
#[cfg(test)]
mod tests;
mod wire;

use model::{Graph, Node};

use super::layer::LayerTensors;
use super::tensors::Tensor;
use crate::agent::Activation;

/// Layers in the order of the forward pass, and what is between them if there are two.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) layers: Vec<LayerTensors>,
    pub(super) activation: Option<Activation>,
}

/// What was met on the way from the output back to the input.
#[derive(Debug)]
enum Met {
    Weight { layer: LayerTensors },
    Bias { name: String, tensor: Tensor },
    Activation { activation: Activation, label: String },
}

/// The chain that ends in `output`, or in the only output there is.
pub(super) fn chain(bytes: &[u8], output: Option<&str>) -> Result<Chain, String> {
    let graph = Graph::parse(bytes)?;
    let output = end(&graph, output)?;
    let met = walk(&graph, output)?;
    assemble(met)
}

fn end<'a>(graph: &'a Graph, output: Option<&str>) -> Result<&'a str, String> {
    match (output, graph.outputs.as_slice()) {
        (None, [only]) => Ok(only),
        (None, all) => Err(format!("it has the outputs {all:?}; say which are the logits: output = \"…\"")),
        (Some(name), all) => {
            let found = all.iter().find(|known| *known == name);
            found.map(String::as_str).ok_or_else(|| format!("it has no output {name:?}, but {all:?}"))
        }
    }
}

/// From the output back to the input, one node after another. A graph that leads back to itself is one that never ends.
fn walk(graph: &Graph, output: &str) -> Result<Vec<Met>, String> {
    let (mut at, mut met) = (output, Vec::new());
    for _ in 0..=graph.nodes.len() {
        let Some(node) = graph.nodes.iter().find(|node| node.outputs.first().is_some_and(|name| name == at)) else {
            let is_given = graph.inputs.iter().any(|name| name == at) && !graph.constants.contains_key(at);
            return if is_given { Ok(met) } else { Err(format!("nothing gives the value {at:?}")) };
        };
        at = step(graph, node, &mut met)?;
    }
    Err(format!("its nodes lead back to {at:?}: that is no chain"))
}

/// Notes what `node` does; the value it does it to.
fn step<'a>(graph: &'a Graph, node: &'a Node, met: &mut Vec<Met>) -> Result<&'a str, String> {
    let input = |index: usize| node.inputs.get(index).map(String::as_str).filter(|name| !name.is_empty());
    let first = input(0).ok_or_else(|| format!("{} has no input", node.label()))?;
    let constant = |name: &str| graph.constants.get(name).cloned();
    match node.op.as_str() {
        _ if !node.is(&node.op) => return Err(refusal(node)),
        "Identity" | "Dropout" => {}
        // Of one observation these change nothing.
        "Flatten" if node.integer("axis", 1) == 1 => {}
        "Cast" if node.integer("to", 0) == 1 => {}
        "Tanh" => met.push(Met::Activation { activation: Activation::Tanh, label: node.label() }),
        "Relu" => met.push(Met::Activation { activation: Activation::Relu, label: node.label() }),
        "Add" => {
            let second = input(1).ok_or_else(|| format!("{} has one input", node.label()))?;
            let (name, other) = if graph.constants.contains_key(second) { (second, first) } else { (first, second) };
            let tensor =
                constant(name).ok_or_else(|| format!("{} adds two values, neither a constant", node.label()))?;
            met.push(Met::Bias { name: name.to_owned(), tensor });
            return Ok(other);
        }
        "Gemm" => gemm(node, (input(1), input(2)), &constant, met)?,
        "MatMul" => {
            let weight = weight(node, input(1), &constant)?;
            let (name, tensor) = (weight.0.clone(), weight.1.transposed());
            met.push(Met::Weight { layer: LayerTensors { weight: (name, tensor), bias: None } });
        }
        _ => return Err(refusal(node)),
    }
    Ok(first)
}

/// `alpha · x · B + beta · C`, with what networks have: both factors one, and only the weights transposed or not.
fn gemm(
    node: &Node,
    (weights, bias): (Option<&str>, Option<&str>),
    constant: &dyn Fn(&str) -> Option<Tensor>,
    met: &mut Vec<Met>,
) -> Result<(), String> {
    if node.real("alpha", 1.0) != 1.0 || node.real("beta", 1.0) != 1.0 || node.integer("transA", 0) != 0 {
        return Err(format!("{}: alpha and beta must be 1, transA 0", node.label()));
    }
    let (name, tensor) = weight(node, weights, constant)?;
    let tensor = if node.integer("transB", 0) == 0 { tensor.transposed() } else { tensor };
    let bias = match bias {
        None => None,
        Some(name) => {
            let tensor = constant(name).ok_or_else(|| format!("{}: {name:?} is no constant", node.label()))?;
            Some((name.to_owned(), tensor))
        }
    };
    met.push(Met::Weight { layer: LayerTensors { weight: (name, tensor), bias } });
    Ok(())
}

fn weight(
    node: &Node,
    name: Option<&str>,
    constant: &dyn Fn(&str) -> Option<Tensor>,
) -> Result<(String, Tensor), String> {
    let name = name.ok_or_else(|| format!("{} has one input", node.label()))?;
    let tensor = constant(name).ok_or_else(|| format!("{}: {name:?} is no constant", node.label()))?;
    Ok((name.to_owned(), tensor))
}

fn refusal(node: &Node) -> String {
    format!(
        "{} is none of Gemm, MatMul, Add, Tanh, Relu, Flatten and Identity; export the layers up to the logits alone, and say \
         how observations are normalised under [normalise]",
        node.label()
    )
}

/// Layers out of what was met, the last first.
fn assemble(met: Vec<Met>) -> Result<Chain, String> {
    let (mut layers, mut activation): (Vec<LayerTensors>, Option<Activation>) = (Vec::new(), None);
    let mut bias: Option<(String, Tensor)> = None;
    // Whether an activation was met since the last layer: one belongs between two.
    let mut is_activated = false;
    for one in met {
        match one {
            Met::Bias { name, tensor } => {
                if let Some((other, _)) = bias.replace((name.clone(), tensor)) {
                    return Err(format!("{other:?} and {name:?} are added one after the other"));
                }
            }
            Met::Weight { mut layer } => {
                if !layers.is_empty() && !is_activated {
                    return Err(format!("nothing is between {:?} and the layer after it", layer.weight.0));
                }
                if let Some((name, tensor)) = bias.take()
                    && let Some((other, _)) = layer.bias.replace((name.clone(), tensor))
                {
                    return Err(format!("{other:?} and {name:?} are added one after the other"));
                }
                is_activated = false;
                layers.push(layer);
            }
            Met::Activation { activation: found, label } => {
                if let Some((name, _)) = &bias {
                    return Err(format!("{name:?} is added to what {label} gives, not to a layer's"));
                }
                if layers.is_empty() || is_activated {
                    return Err(format!("{label} is not between two layers; the last of a policy has none"));
                }
                if activation.is_some_and(|known| known != found) {
                    return Err(format!("{label} is another activation than that of the layers after it"));
                }
                (activation, is_activated) = (Some(found), true);
            }
        }
    }
    match (bias, is_activated) {
        (Some((name, _)), _) => Err(format!("{name:?} is added to the observation; say so under [normalise]")),
        (None, true) => Err("an activation comes before the first layer".to_owned()),
        (None, false) if layers.is_empty() => Err("there is no layer between its input and its output".to_owned()),
        (None, false) => {
            layers.reverse();
            Ok(Chain { layers, activation })
        }
    }
}
