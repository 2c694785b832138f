//! The kernels on the CPU: takes the slices out of Burn's tensors and calls the functions of [`crate::cpu`].

use crate::packed::Packed;
use crate::step::{StepLayout, StepView};
use crate::{AttendParams, Epilogue, HeadParams, LinearParams, MatrixShape, Ops, Recording, cpu};
use burn::backend::Flex;
use burn::backend::tensor::{FloatTensor, IntTensor};

/// The buffer's values, to be changed in place.
///
/// # Panics
/// A clone is alive: the write would copy the whole buffer, at every token.
macro_rules! in_place {
    ($tensor:ident, $kind:ty) => {
        $tensor.try_storage_mut::<$kind>().expect(concat!("a clone of `", stringify!($tensor), "` is alive"))
    };
}

fn packed<'a>(words: &'a IntTensor<Flex>, scales: &'a IntTensor<Flex>, shape: MatrixShape) -> Packed<'a> {
    Packed { codec: shape.codec, rows: shape.rows, cols: shape.cols, words: words.storage(), scales: scales.storage() }
}

impl Ops for Flex {
    fn write(mut buffer: IntTensor<Self>, words: Vec<u32>) -> IntTensor<Self> {
        in_place!(buffer, u32)[..words.len()].copy_from_slice(&words);
        buffer
    }

    fn embed(
        words: IntTensor<Self>,
        scales: IntTensor<Self>,
        step: IntTensor<Self>,
        mut x: FloatTensor<Self>,
        matrix: MatrixShape,
        layout: StepLayout,
    ) -> FloatTensor<Self> {
        let step = StepView::new(layout, step.storage());
        let ids: Vec<u32> = (0..step.rows()).map(|row| step.row(row).token).collect();
        let out = &mut in_place!(x, f32)[..ids.len() * matrix.cols];
        cpu::embed(&packed(&words, &scales, matrix), &ids, out);
        x
    }

    fn linear(
        x: FloatTensor<Self>,
        words: IntTensor<Self>,
        scales: IntTensor<Self>,
        step: IntTensor<Self>,
        gain: FloatTensor<Self>,
        mut out: FloatTensor<Self>,
        params: LinearParams,
    ) -> FloatTensor<Self> {
        let step = StepView::new(params.step, step.storage());
        let (first, rows) = if params.head { (step.head_first(), step.head_rows()) } else { (0, step.rows()) };
        let cols = params.matrix.cols;
        let width = match params.epilogue {
            Epilogue::Store | Epilogue::Add => params.matrix.rows,
            Epilogue::SiluGate => params.matrix.rows / 2,
        };
        let norm = params.eps.map(|bits| cpu::Norm { gain: gain.storage(), eps: f32::from_bits(bits) });
        let x = &x.storage::<f32>()[first * cols..(first + rows) * cols];
        let out_rows = &mut in_place!(out, f32)[..rows * width];
        cpu::linear(x, rows, norm, &packed(&words, &scales, params.matrix), out_rows, params.epilogue);
        out
    }

    fn attend(
        qkv: FloatTensor<Self>,
        arena: IntTensor<Self>,
        rope: FloatTensor<Self>,
        sink_logits: FloatTensor<Self>,
        step: IntTensor<Self>,
        mut part: FloatTensor<Self>,
        mut out: FloatTensor<Self>,
        mut report: FloatTensor<Self>,
        params: AttendParams,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let attend = cpu::Attend {
            heads: params.heads,
            format: params.format,
            rope: rope.storage(),
            step: StepView::new(params.step, step.storage()),
            store: params.store,
            sink_logits: sink_logits.storage(),
            layer: params.layer,
            report: params.report,
            slots: params.slots,
        };
        let to =
            cpu::Attended { out: in_place!(out, f32), report: in_place!(report, f32), probs: in_place!(part, f32) };
        cpu::attend(&attend, qkv.storage(), arena.storage(), to);
        (part, out, report)
    }

    fn append(
        qkv: FloatTensor<Self>,
        step: IntTensor<Self>,
        mut arena: IntTensor<Self>,
        params: AttendParams,
    ) -> IntTensor<Self> {
        let step = StepView::new(params.step, step.storage());
        cpu::append(params.heads, params.format, step, params.store, qkv.storage(), in_place!(arena, u32));
        arena
    }

    fn head(
        logits: FloatTensor<Self>,
        step: IntTensor<Self>,
        mut report: FloatTensor<Self>,
        params: HeadParams,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let step = StepView::new(params.step, step.storage());
        cpu::head(logits.storage(), params.vocab, step, params.report, in_place!(report, f32));
        (logits, report)
    }

    fn rehearse(_: IntTensor<Self>) -> bool {
        false
    }

    fn record(_: IntTensor<Self>) -> bool {
        false
    }

    fn recorded(_: IntTensor<Self>) -> Option<Recording> {
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::WordBuffer;
    use burn::tensor::Device;

    #[test]
    fn a_buffer_is_written_in_place() {
        let mut buffer = WordBuffer::zeros(4, &Device::flex());
        buffer.write(vec![7, 8]);
        let words = buffer.read().into_data().try_to_vec::<u32>().expect("words");
        assert_eq!(words, [7, 8, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "a clone of `buffer` is alive")]
    fn a_clone_would_cost_a_copy_at_every_token() {
        let mut buffer = WordBuffer::zeros(4, &Device::flex());
        let _clone = buffer.alias();
        buffer.write(vec![7]);
    }
}
