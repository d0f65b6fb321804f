"""Label Studio: regions as tasks on a running server, and masks out of what people paint there.

Here live the client, the code of brush masks, what tasks look like, and a run's project. It speaks plain HTTP: neither
Label Studio nor its SDK need be installed beside ralseg.
"""
