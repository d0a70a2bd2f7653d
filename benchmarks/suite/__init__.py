"""The benchmarks, a module each; a module's BENCHMARKS are what it measures."""

MODULES = tuple(
    f"suite.{name}"
    for name in (
        "matmul",
        "resnet50",
        "resnet50_compile",
        "laplacian",
        "two_stencils",
        "while_loop",
        "one_op",
        "new_size",
        "softmax",
        "layer_norm",
        "bert",
    )
)
