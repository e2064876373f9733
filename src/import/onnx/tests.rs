//! Graphs as exporters write them, and as nobody should.

use proptest::prelude::*;

use super::*;

/// A message being written.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(mut self, field: u64, number: u64) -> Message {
        self.varint(field << 3);
        self.varint(number);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Message {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn real(mut self, field: u64, real: f32) -> Message {
        self.varint(field << 3 | 5);
        self.0.extend_from_slice(&real.to_le_bytes());
        self
    }

    fn message(self, field: u64, message: &Message) -> Message {
        self.bytes(field, &message.0)
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

fn constant(name: &str, shape: &[u64], values: &[f32]) -> Message {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let message = shape.iter().fold(Message::default(), |message, &size| message.number(1, size));
    message.number(2, 1).bytes(8, name.as_bytes()).bytes(9, &raw)
}

fn integer(name: &str, integer: u64) -> Message {
    Message::default().bytes(1, name.as_bytes()).number(3, integer)
}

fn node(op: &str, inputs: &[&str], output: &str, attributes: &[Message]) -> Message {
    let message = inputs.iter().fold(Message::default(), |message, input| message.bytes(1, input.as_bytes()));
    let message = message.bytes(2, output.as_bytes()).bytes(3, format!("/{output}").as_bytes()).bytes(4, op.as_bytes());
    attributes.iter().fold(message, |message, attribute| message.message(5, attribute))
}

/// A model of these nodes and constants, from `obs` to `logits`.
fn model(nodes: &[Message], constants: &[Message]) -> Vec<u8> {
    let named = |name: &str| Message::default().bytes(1, name.as_bytes());
    let graph = nodes.iter().fold(Message::default().bytes(2, b"main"), |graph, node| graph.message(1, node));
    let graph = constants.iter().fold(graph, |graph, constant| graph.message(5, constant));
    let graph = graph.message(11, &named("obs")).message(12, &named("logits"));
    Message::default().number(1, 9).message(7, &graph).0
}

/// Two layers, 2 → 3 → 2: a `Gemm` as PyTorch writes it, and a product with its sum.
fn two_layers() -> (Vec<Message>, Vec<Message>) {
    let nodes = vec![
        node("Flatten", &["obs"], "flat", &[integer("axis", 1)]),
        node("Gemm", &["flat", "w0", "b0"], "first", &[integer("transB", 1)]),
        node("Tanh", &["first"], "between", &[]),
        node("MatMul", &["between", "w1"], "product", &[]),
        node("Add", &["b1", "product"], "logits", &[]),
    ];
    let constants = vec![
        constant("w0", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        constant("b0", &[3], &[0.1, 0.2, 0.3]),
        constant("w1", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        constant("b1", &[2], &[0.5, 0.6]),
    ];
    (nodes, constants)
}

fn values(tensor: &Tensor) -> (Vec<usize>, Vec<f64>) {
    match tensor {
        Tensor::Values { shape, values } => (shape.clone(), values.clone()),
        Tensor::Other { kind, .. } => panic!("{kind}"),
    }
}

#[test]
fn products_and_sums_are_layers() {
    let (nodes, constants) = two_layers();
    let Chain { layers, activation } = chain(&model(&nodes, &constants), None).unwrap();
    assert_eq!((layers.len(), activation), (2, Some(Activation::Tanh)));
    assert_eq!(values(&layers[0].weight.1), (vec![3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    // Given as inputs by outputs, and turned.
    assert_eq!(values(&layers[1].weight.1), (vec![2, 3], vec![1.0, 3.0, 5.0, 2.0, 4.0, 6.0]));
    let bias = layers[1].bias.as_ref().map(|(name, tensor)| (name.as_str(), values(tensor).1));
    assert_eq!(bias, Some(("b1", vec![f64::from(0.5_f32), f64::from(0.6_f32)])));
}

fn refusal(nodes: &[Message], constants: &[Message]) -> String {
    chain(&model(nodes, constants), None).unwrap_err()
}

#[test]
fn what_is_no_chain_of_layers_is_refused_by_name() {
    let (nodes, constants) = two_layers();
    let with = |index: usize, other: Message| {
        let mut nodes = nodes.clone();
        nodes[index] = other;
        refusal(&nodes, &constants)
    };
    for (refused, what) in [
        (with(2, node("Softmax", &["first"], "between", &[])), "node \"/between\" (Softmax) is none of Gemm"),
        (with(2, node("Tanh", &["product"], "between", &[])), "lead back to"),
        (with(2, node("Identity", &["first"], "between", &[])), "nothing is between \"w0\" and the layer after it"),
        (with(3, node("MatMul", &["between", "flat"], "product", &[])), "\"flat\" is no constant"),
        (with(4, node("Add", &["product", "flat"], "logits", &[])), "adds two values"),
        (with(4, node("Relu", &["product"], "logits", &[])), "is not between two layers"),
        (with(1, node("Gemm", &[], "first", &[])), "has no input"),
        (with(1, node("Gemm", &["flat"], "first", &[])), "has one input"),
        (with(0, node("Flatten", &["obs"], "flat", &[integer("axis", 2)])), "(Flatten) is none of"),
        (
            with(0, node("Add", &["obs", "b1"], "flat", &[])),
            "\"b1\" is added to the observation; say so under [normalise]",
        ),
        (with(0, node("Flatten", &["elsewhere"], "flat", &[])), "nothing gives the value \"elsewhere\""),
        (
            with(1, node("Gemm", &["flat", "w0"], "first", &[Message::default().bytes(1, b"alpha").real(2, 0.5)])),
            "alpha",
        ),
        (with(1, node("Gemm", &["flat", "w0"], "first", &[]).bytes(7, b"com.example")), "(com.example.Gemm)"),
        (refusal(&[node("Identity", &["obs"], "logits", &[])], &[]), "no layer between"),
    ] {
        assert!(refused.contains(what), "{refused}");
    }
    let both = model(&nodes, &constants);
    assert!(chain(&both, Some("actions")).unwrap_err().contains("no output \"actions\", but [\"logits\"]"));
    assert_eq!(chain(&both, Some("logits")).unwrap().layers.len(), 2);
}

#[test]
fn tensors_that_lie_are_refused() {
    let (nodes, constants) = two_layers();
    let with = |other: Message| refusal(&nodes, &[&constants[1..], &[other]].concat());
    for (refused, what) in [
        (with(constant("w0", &[1 << 40, 1 << 40], &[1.0])), "\"w0\" is said to be"),
        (with(constant("w0", &[u64::MAX], &[1.0])), "\"w0\" is said to be"),
        (with(constant("w0", &[1; 17], &[1.0])), "more than 16 dimensions"),
        (with(constant("w0", &[3, 2], &[1.0]).number(14, 1)), "a file of its own"),
    ] {
        assert!(refused.contains(what), "{refused}");
    }
    assert!(chain(b"", None).unwrap_err().contains("no ONNX model"));
    assert!(chain(b"{\"layout\": 1}", None).is_err());
}

#[test]
fn a_file_that_ends_early_is_refused_wherever_it_ends() {
    let (nodes, constants) = two_layers();
    let whole = model(&nodes, &constants);
    for length in 0..whole.len() {
        assert!(chain(&whole[..length], None).is_err(), "{length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_file_brings_the_reader_down(places in prop::collection::vec((0..1000_usize, any::<u8>()), 1..6)) {
        let (nodes, constants) = two_layers();
        let mut bytes = model(&nodes, &constants);
        for (place, byte) in places {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        // Whatever it says, it comes back.
        let _ = chain(&bytes, None);
        let _ = chain(&bytes[bytes.len() / 2..], None);
    }
}
