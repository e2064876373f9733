//! What of an ONNX file is read: the nodes of its graph and its constants. Numbers of fields are those of `onnx.proto3`.

use std::collections::BTreeMap;

use super::wire::{Fields, Value};
use crate::import::tensors::Tensor;

/// Most nodes and most constants of a graph: a chain of eight layers has some forty.
const MOST: usize = 4096;

/// A graph.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    /// Values that are in the file, by name.
    pub(super) constants: BTreeMap<String, Tensor>,
    /// Names of the values that are given to it; older files name constants here as well.
    pub(super) inputs: Vec<String>,
    /// Names of the values it gives.
    pub(super) outputs: Vec<String>,
}

/// An operation.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) op: String,
    /// Whose operation it is; empty for ONNX's own.
    domain: String,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    integers: BTreeMap<String, i64>,
    reals: BTreeMap<String, f32>,
    value: Option<Tensor>,
}

impl Node {
    /// What to call it in an error.
    pub(super) fn label(&self) -> String {
        let name = if self.name.is_empty() { self.outputs.first() } else { Some(&self.name) };
        let domain = if self.domain.is_empty() { String::new() } else { format!("{}.", self.domain) };
        format!("node {:?} ({domain}{})", name.map_or("", String::as_str), self.op)
    }

    /// Whether it is that operation of ONNX's own.
    pub(super) fn is(&self, op: &str) -> bool {
        self.op == op && matches!(self.domain.as_str(), "" | "ai.onnx")
    }

    pub(super) fn integer(&self, name: &str, otherwise: i64) -> i64 {
        self.integers.get(name).copied().unwrap_or(otherwise)
    }

    pub(super) fn real(&self, name: &str, otherwise: f32) -> f32 {
        self.reals.get(name).copied().unwrap_or(otherwise)
    }
}

impl Graph {
    /// The graph of a model.
    pub(super) fn parse(bytes: &[u8]) -> Result<Graph, String> {
        let mut fields = Fields::of(bytes);
        let mut graph = None;
        while let Some((field, value)) = fields.next()? {
            if let (7, Value::Bytes(message)) = (field, value) {
                graph = Some(Graph::of(message)?);
            }
        }
        graph.ok_or_else(|| "it has no graph: that is no ONNX model".to_owned())
    }

    fn of(message: &[u8]) -> Result<Graph, String> {
        let mut graph = Graph::default();
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, Value::Bytes(message)) => graph.add(node(message)?),
                (5, Value::Bytes(message)) => {
                    let (name, tensor) = tensor(message)?;
                    graph.constants.insert(name, tensor);
                }
                (11, Value::Bytes(message)) => graph.inputs.push(named(message)?),
                (12, Value::Bytes(message)) => graph.outputs.push(named(message)?),
                _ => {}
            }
            if graph.nodes.len().max(graph.constants.len()).max(graph.inputs.len()).max(graph.outputs.len()) > MOST {
                return Err(format!("it has more than {MOST} nodes or values: that is no small network"));
            }
        }
        Ok(graph)
    }

    /// A constant written as a node is a constant.
    fn add(&mut self, node: Node) {
        match (node.is("Constant"), &node.value, node.outputs.first()) {
            (true, Some(value), Some(name)) => drop(self.constants.insert(name.clone(), value.clone())),
            _ => self.nodes.push(node),
        }
    }
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a name is not UTF-8".to_owned())
}

/// Name of a `ValueInfoProto`.
fn named(message: &[u8]) -> Result<String, String> {
    let mut fields = Fields::of(message);
    let mut name = String::new();
    while let Some((field, value)) = fields.next()? {
        if let (1, Value::Bytes(bytes)) = (field, value) {
            name = text(bytes)?;
        }
    }
    Ok(name)
}

/// A `NodeProto`.
fn node(message: &[u8]) -> Result<Node, String> {
    let mut node = Node::default();
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        let Value::Bytes(bytes) = value else { continue };
        match field {
            1 => node.inputs.push(text(bytes)?),
            2 => node.outputs.push(text(bytes)?),
            3 => node.name = text(bytes)?,
            4 => node.op = text(bytes)?,
            5 => attribute(bytes, &mut node)?,
            7 => node.domain = text(bytes)?,
            _ => {}
        }
        if node.inputs.len().max(node.outputs.len()) > MOST {
            return Err(format!("{} has more than {MOST} inputs or outputs", node.label()));
        }
    }
    Ok(node)
}

/// An `AttributeProto`: of its kinds those that the operations of a chain have.
fn attribute(message: &[u8], node: &mut Node) -> Result<(), String> {
    let mut fields = Fields::of(message);
    let (mut name, mut integer, mut real, mut value) = (String::new(), None, None, None);
    while let Some((field, found)) = fields.next()? {
        match (field, found) {
            (1, Value::Bytes(bytes)) => name = text(bytes)?,
            (2, Value::Fixed32(bytes)) => real = Some(f32::from_le_bytes(bytes)),
            (3, Value::Number(number)) => integer = Some(number as i64),
            (5, Value::Bytes(bytes)) => value = Some(tensor(bytes)?.1),
            _ => {}
        }
    }
    node.integers.extend(integer.map(|integer| (name.clone(), integer)));
    node.reals.extend(real.map(|real| (name, real)));
    node.value = value.or(node.value.take());
    Ok(())
}

/// A `TensorProto` with its name. What is neither `float` nor `double` is read as of its type, and refused where it is needed.
fn tensor(message: &[u8]) -> Result<(String, Tensor), String> {
    let mut fields = Fields::of(message);
    let (mut name, mut kind, mut shape, mut is_elsewhere) = (String::new(), 0, Vec::new(), false);
    let (mut raw, mut values): (Option<&[u8]>, Vec<f64>) = (None, Vec::new());
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, Value::Number(dimension)) => shape.push(dimension),
            (1, Value::Bytes(packed)) => {
                let mut packed = Fields::of(packed);
                while !packed.is_empty() {
                    shape.push(packed.number()?);
                }
            }
            (2, Value::Number(number)) => kind = number,
            (4, Value::Bytes(packed)) => values.extend(floats(packed)),
            (4, Value::Fixed32(bytes)) => values.push(f64::from(f32::from_le_bytes(bytes))),
            (8, Value::Bytes(bytes)) => name = text(bytes)?,
            (9, Value::Bytes(bytes)) => raw = Some(bytes),
            (10, Value::Bytes(packed)) => values.extend(doubles(packed)),
            (10, Value::Fixed64(bytes)) => values.push(f64::from_le_bytes(bytes)),
            (13, _) => is_elsewhere = true,
            (14, Value::Number(location)) => is_elsewhere |= location == 1,
            _ => {}
        }
        if shape.len() > 16 {
            return Err(format!("tensor {name:?} has more than 16 dimensions"));
        }
    }
    if is_elsewhere {
        return Err(format!("tensor {name:?} lies in a file of its own; export with everything in one file"));
    }
    let shape: Vec<usize> = shape.into_iter().map(|size| usize::try_from(size).unwrap_or(usize::MAX)).collect();
    let values = match (kind, raw) {
        (1, Some(raw)) => floats(raw).collect(),
        (11, Some(raw)) => doubles(raw).collect(),
        (1 | 11, None) => values,
        (other, _) => return Ok((name, Tensor::Other { kind: format!("ONNX type {other}"), shape })),
    };
    let claimed = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
    if claimed != Some(values.len()) {
        return Err(format!("tensor {name:?} is said to be {shape:?} and holds {} values", values.len()));
    }
    Ok((name, Tensor::Values { shape, values }))
}

fn floats(packed: &[u8]) -> impl Iterator<Item = f64> {
    packed.chunks_exact(4).map(|bytes| f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
}

fn doubles(packed: &[u8]) -> impl Iterator<Item = f64> {
    packed.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes))
}
