"""Models of a custom runtime, as MLServer's documentation has them."""

from __future__ import annotations

from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec


class Identity(MLModel):
    """The rows as they came; a row with 666 in it fails the call."""

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        if (rows == 666).any():
            raise ValueError("a row is marked")
        output = NumpyCodec.encode_output("rows_out", rows)
        return types.InferenceResponse(model_name=self.name, outputs=[output])


class Add(MLModel):
    """The sum of two inputs."""

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        tensors = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        output = NumpyCodec.encode_output("sum", tensors["a"] + tensors["b"])
        return types.InferenceResponse(model_name=self.name, outputs=[output])
