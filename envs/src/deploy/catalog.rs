//! The models known by name. Widths are those of the published `config.json` of each, on Hugging Face; what they add up to is
//! tested against the count of weights that was published.

use super::architecture::{Architecture, ExpertWidths, LatentWidths};
use super::structure::{Latent, Precision, Window};

/// A model known by name.
pub(super) struct Entry {
    pub(super) name: &'static str,
    /// Other names of the same widths.
    pub(super) also: &'static [&'static str],
    /// Where its widths stand.
    pub(super) source: &'static str,
    /// Weights as published, in thousands of millions: all, and those a token is multiplied with, where that is said.
    pub(super) published: (f64, Option<f64>),
    /// Layers, hidden, heads, KV heads, width of a head, intermediate, vocabulary, length.
    widths: [u32; 8],
    tied: bool,
    latent: Option<LatentWidths>,
    /// Tokens of the window, and layers that have one.
    window: Option<Window>,
    experts: Option<ExpertWidths>,
    precision: Precision,
}

const fn dense(name: &'static str, source: &'static str, published: f64, widths: [u32; 8]) -> Entry {
    Entry {
        name,
        also: &[],
        source,
        published: (published, None),
        widths,
        tied: false,
        latent: None,
        window: None,
        experts: None,
        precision: Precision::Bf16,
    }
}

impl Entry {
    const fn also(self, also: &'static [&'static str]) -> Entry {
        Entry { also, ..self }
    }

    const fn tied(self) -> Entry {
        Entry { tied: true, ..self }
    }

    /// `layers` of the layers attend to `tokens`.
    const fn window(self, tokens: u32, layers: u32) -> Entry {
        Entry { window: Some(Window { tokens, layers }), ..self }
    }

    /// Experts in all layers but the first `dense`: how many, how many to a token, width of one, width of what is shared.
    const fn experts(self, active: f64, dense: u32, [count, per_token, width, shared]: [u32; 4]) -> Entry {
        let layers = self.widths[0] - dense;
        let published = (self.published.0, Some(active));
        Entry { published, experts: Some(ExpertWidths { layers, count, per_token, width, shared }), ..self }
    }

    /// Latent attention of `DeepSeek`'s widths.
    const fn latent(self, query_rank: Option<u32>) -> Entry {
        Entry { latent: Some(LatentWidths { kv: Latent { rank: 512, rotary: 64, value: 128 }, query_rank }), ..self }
    }

    const fn precision(self, precision: Precision) -> Entry {
        Entry { precision, ..self }
    }

    pub(super) fn architecture(&self) -> Architecture {
        let [layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary, length] = self.widths;
        Architecture {
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            intermediate,
            matrices: 3,
            vocabulary,
            length,
            tied: self.tied,
            latent: self.latent,
            window: self.window,
            experts: self.experts,
            precision: self.precision,
            // The models that were published in fp8 are so (`weight_block_size` of their files).
            by_blocks: self.precision == Precision::Fp8,
            notes: Vec::new(),
        }
    }
}

/// Every model known by name. Lengths are those of `max_position_embeddings`, without rope scaling that a file does not turn
/// on; the first four have been here from the start (Llama 3.1 for the length).
pub(super) const CATALOG: &[Entry] = &[
    dense("llama-3-8b", "meta-llama/Llama-3.1-8B", 8.03, [32, 4096, 32, 8, 128, 14_336, 128_256, 131_072])
        .also(&["llama-3.1-8b"]),
    dense("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", 7.61, [28, 3584, 28, 4, 128, 18_944, 152_064, 32_768]),
    dense("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", 0.494, [24, 896, 14, 2, 64, 4864, 151_936, 32_768]).tied(),
    dense("llama-3-70b", "meta-llama/Llama-3.3-70B-Instruct", 70.6, [80, 8192, 64, 8, 128, 28_672, 128_256, 131_072])
        .also(&["llama-3.1-70b", "llama-3.3-70b"]),
    dense("llama-3.1-405b", "meta-llama/Llama-3.1-405B", 405.0, [126, 16_384, 128, 8, 128, 53_248, 128_256, 131_072]),
    dense("llama-3.2-1b", "meta-llama/Llama-3.2-1B", 1.24, [16, 2048, 32, 8, 64, 8192, 128_256, 131_072]).tied(),
    dense("llama-3.2-3b", "meta-llama/Llama-3.2-3B", 3.21, [28, 3072, 24, 8, 128, 8192, 128_256, 131_072]).tied(),
    dense("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", 1.54, [28, 1536, 12, 2, 128, 8960, 151_936, 32_768]).tied(),
    dense("qwen2.5-3b", "Qwen/Qwen2.5-3B-Instruct", 3.09, [36, 2048, 16, 2, 128, 11_008, 151_936, 32_768]).tied(),
    dense("qwen2.5-14b", "Qwen/Qwen2.5-14B-Instruct", 14.7, [48, 5120, 40, 8, 128, 13_824, 152_064, 32_768]),
    dense("qwen2.5-32b", "Qwen/Qwen2.5-32B-Instruct", 32.5, [64, 5120, 40, 8, 128, 27_648, 152_064, 32_768]),
    dense("qwen2.5-72b", "Qwen/Qwen2.5-72B-Instruct", 72.7, [80, 8192, 64, 8, 128, 29_568, 152_064, 32_768]),
    dense("qwen3-0.6b", "Qwen/Qwen3-0.6B", 0.6, [28, 1024, 16, 8, 128, 3072, 151_936, 40_960]).tied(),
    dense("qwen3-4b", "Qwen/Qwen3-4B", 4.0, [36, 2560, 32, 8, 128, 9728, 151_936, 40_960]).tied(),
    dense("qwen3-8b", "Qwen/Qwen3-8B", 8.2, [36, 4096, 32, 8, 128, 12_288, 151_936, 40_960]),
    dense("qwen3-14b", "Qwen/Qwen3-14B", 14.8, [40, 5120, 40, 8, 128, 17_408, 151_936, 40_960]),
    dense("qwen3-32b", "Qwen/Qwen3-32B", 32.8, [64, 5120, 64, 8, 128, 25_600, 151_936, 40_960]),
    dense("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 30.5, [48, 2048, 32, 4, 128, 6144, 151_936, 40_960]).experts(
        3.3,
        0,
        [128, 8, 768, 0],
    ),
    dense("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", 235.0, [94, 4096, 64, 4, 128, 12_288, 151_936, 40_960]).experts(
        22.0,
        0,
        [128, 8, 1536, 0],
    ),
    dense(
        "qwen3-coder-480b-a35b",
        "Qwen/Qwen3-Coder-480B-A35B-Instruct",
        480.0,
        [62, 6144, 96, 8, 128, 8192, 151_936, 262_144],
    )
    .experts(35.0, 0, [160, 8, 2560, 0]),
    dense("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3", 7.25, [32, 4096, 32, 8, 128, 14_336, 32_768, 32_768]),
    dense("mistral-nemo", "mistralai/Mistral-Nemo-Base-2407", 12.2, [40, 5120, 32, 8, 128, 14_336, 131_072, 131_072]),
    dense(
        "mistral-small-24b",
        "mistralai/Mistral-Small-24B-Instruct-2501",
        23.6,
        [40, 5120, 32, 8, 128, 32_768, 131_072, 32_768],
    ),
    dense(
        "mistral-large-123b",
        "mistralai/Mistral-Large-Instruct-2411",
        123.0,
        [88, 12_288, 96, 8, 128, 28_672, 32_768, 131_072],
    ),
    dense("mixtral-8x7b", "mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, [32, 4096, 32, 8, 128, 14_336, 32_000, 32_768])
        .experts(12.9, 0, [8, 2, 14_336, 0]),
    dense(
        "mixtral-8x22b",
        "mistralai/Mixtral-8x22B-Instruct-v0.1",
        141.0,
        [56, 6144, 48, 8, 128, 16_384, 32_768, 65_536],
    )
    .experts(39.0, 0, [8, 2, 16_384, 0]),
    dense("gemma-2-9b", "google/gemma-2-9b", 9.24, [42, 3584, 16, 8, 256, 14_336, 256_000, 8192])
        .tied()
        .window(4096, 21),
    dense("gemma-2-27b", "google/gemma-2-27b", 27.2, [46, 4608, 32, 16, 128, 36_864, 256_000, 8192])
        .tied()
        .window(4096, 23),
    // Of these the text part, without the vision tower; full attention in every sixth layer.
    dense("gemma-3-1b", "google/gemma-3-1b-it", 1.0, [26, 1152, 4, 1, 256, 6912, 262_144, 32_768])
        .tied()
        .window(512, 22),
    dense("gemma-3-4b", "google/gemma-3-4b-it", 3.88, [34, 2560, 8, 4, 256, 10_240, 262_208, 131_072])
        .tied()
        .window(1024, 29),
    dense("gemma-3-12b", "google/gemma-3-12b-it", 11.77, [48, 3840, 16, 8, 256, 15_360, 262_208, 131_072])
        .tied()
        .window(1024, 40),
    dense("gemma-3-27b", "google/gemma-3-27b-it", 27.0, [62, 5376, 32, 16, 128, 21_504, 262_208, 131_072])
        .tied()
        .window(1024, 52),
    dense("gpt-oss-20b", "openai/gpt-oss-20b", 20.9, [24, 2880, 64, 8, 64, 2880, 201_088, 131_072])
        .window(128, 12)
        .experts(3.61, 0, [32, 4, 2880, 0])
        .precision(Precision::ExpertsMxfp4),
    dense("gpt-oss-120b", "openai/gpt-oss-120b", 116.8, [36, 2880, 64, 8, 64, 2880, 201_088, 131_072])
        .window(128, 18)
        .experts(5.13, 0, [128, 4, 2880, 0])
        .precision(Precision::ExpertsMxfp4),
    dense("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 15.7, [27, 2048, 16, 16, 192, 10_944, 102_400, 163_840])
        .latent(None)
        .experts(2.4, 1, [64, 6, 1408, 2816]),
    dense("deepseek-v3", "deepseek-ai/DeepSeek-V3", 671.0, [61, 7168, 128, 128, 192, 18_432, 129_280, 163_840])
        .also(&["deepseek-r1", "deepseek-v3.1"])
        .latent(Some(1536))
        .experts(37.0, 3, [256, 8, 2048, 2048])
        .precision(Precision::Fp8),
    dense("kimi-k2", "moonshotai/Kimi-K2-Instruct", 1030.0, [61, 7168, 64, 64, 192, 18_432, 163_840, 131_072])
        .latent(Some(1536))
        .experts(32.0, 1, [384, 8, 2048, 2048])
        .precision(Precision::Fp8),
    dense("phi-4", "microsoft/phi-4", 14.7, [40, 5120, 40, 10, 128, 17_920, 100_352, 16_384]),
    dense("phi-4-mini", "microsoft/Phi-4-mini-instruct", 3.84, [32, 3072, 24, 8, 128, 8192, 200_064, 131_072]).tied(),
    dense("glm-4.5", "zai-org/GLM-4.5", 355.0, [92, 5120, 96, 8, 128, 12_288, 151_552, 131_072]).experts(
        32.0,
        3,
        [160, 8, 1536, 1536],
    ),
    dense("glm-4.6", "zai-org/GLM-4.6", 355.0, [92, 5120, 96, 8, 128, 12_288, 151_552, 202_752]).experts(
        32.0,
        3,
        [160, 8, 1536, 1536],
    ),
    dense("glm-4.5-air", "zai-org/GLM-4.5-Air", 106.0, [46, 4096, 96, 8, 128, 10_944, 151_552, 131_072]).experts(
        12.0,
        1,
        [128, 8, 1408, 1408],
    ),
];
