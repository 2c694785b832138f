//! Where a model runs.

use burn::tensor::Device;
use kernels::Grid;

/// Where a model runs.
#[derive(Clone, Debug)]
pub struct Place {
    pub device: Device,
    /// How the shaders spread their work; none on the CPU.
    pub grid: Option<Grid>,
}

/// What a GPU is called, and whether it is a CPU in disguise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    pub name: String,
    pub software: bool,
}

/// There is no GPU that can be used.
#[derive(Debug, thiserror::Error)]
#[error("no GPU can be used here ({0}): use the CPU instead, or install a driver for WebGPU or Vulkan")]
pub struct NoGpu(String);

impl Place {
    /// The CPU.
    pub fn cpu() -> Self {
        Self { device: Device::flex(), grid: None }
    }

    /// The GPU. Once a process: a second initialisation fails. `software` says that the adapter is a CPU in disguise,
    /// where the caller knows; a browser does not tell the module, natively the adapter itself does.
    ///
    /// # Errors
    /// There is no adapter, or it lacks what cubecl needs.
    pub async fn gpu(software: Option<bool>) -> Result<(Self, Adapter), NoGpu> {
        let (device, setup) =
            Device::wgpu_options().init_with_setup_async().await.map_err(|error| NoGpu(error.to_string()))?;
        let info = setup.adapter.get_info();
        let software = software.unwrap_or(info.device_type == wgpu::DeviceType::Cpu);
        let grid = if software { Grid::Software } else { Grid::Gpu };
        Ok((Self { device, grid: Some(grid) }, Adapter { name: info.name, software }))
    }
}
