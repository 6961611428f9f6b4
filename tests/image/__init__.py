"""The image, built and run as its users do; `make image-test`."""
